"""Power losses on real file systems, from a log of what they write to their disk.

A disk is a file image behind a loop device. qemu-storage-daemon logs every block write and every
flush that the file system makes. A power loss at any instant leaves the writes before it. The disk
may also lose any of the writes after its last flush, because it keeps them in a cache. The states
of `states.py` are such images, mounted again by the same kernel, so that its own journal recovery
has the last word.

`disk.py` is the disk that a program writes to, `log.py` reads the log, `image.py` builds an image
again, and `tools.py` runs the programs of the system. All of it needs root.
"""
