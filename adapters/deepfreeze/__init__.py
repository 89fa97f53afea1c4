"""DeepFreeze: durable checkpoints at the speed of the disk, from host buffers, without any framework.

A save copies the state tensor by tensor into one arena that has the layout of the file, checksums
it there, and writes with direct I/O what has been copied so far; a save that training waits for
goes through a small ring instead. The parts, each with one reason to change:

- `tensor`: what the engine is given;
- `layout`: who writes what, and where it lies in a safetensors file;
- `arena`: the memory that a save is copied into;
- `snapshot`: copying and checksumming;
- `writer`: writing one file behind the copying;
- `commit`: how all ranks' files become one visible checkpoint;
- `stored`, `reader`: what lies in a checkpoint, and reading it back, verified;
- `engine`: the above put together; `method`: the engine as a method of the contract; `store`:
  levels and retention above it.

Files: `model.safetensors`, or `model-00001-of-0000N.safetensors` by each of N ranks and
`model.safetensors.index.json`. Names are those of the leaves. A leaf that each rank has of its own
is called `NAME@rankR`, the rows of a replicated leaf that was divided `NAME@rowsSTART-STOP`. The
header's metadata holds every tensor's xxh3 checksum, the header's own, and the step.
"""
