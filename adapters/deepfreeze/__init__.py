"""DeepFreeze: durable checkpoints at the speed of the disk, from host buffers, in any framework.

A save copies the state tensor by tensor into one arena that has the layout of the file. It
checksums the tensors there, and writes what is copied so far with direct I/O. A save that training
waits for goes through a small ring instead. Each part has one reason to change:

- `tensor`: the tensors that the engine is given;
- `shares`: which rank writes which tensors; `layout`: where they lie in a safetensors file;
- `arena`: the memory that a save is copied into;
- `snapshot`, `ring_snapshot`: copying and checksumming; `streaming`: copying past the caches;
- `writer`: writing one file behind the copying;
- `commit`: how one rank's file becomes a visible checkpoint; `common_commit`: how the files of all
  ranks do; `meeting`: how ranks tell each other how it goes; `watch`, `processes`: how they notice
  a dead one;
- `save`: one save from the first copy to the end; `lifecycle`: its states and transitions;
- `header`, `stored`: the files of a checkpoint, checked, and where in them the tensors lie;
- `read_plan`, `opened_file`, `arrivals`, `reader`, `loader`: reading them back, verified;
- `copier`: loading a file in memory by copying it;
- `engine`: all of this together; `method`: the engine as a method of the contract; `peers`: how
  the ranks agree; `store`: levels and retention above the method.

Files: `model.safetensors`, or `model-00001-of-0000N.safetensors` by each of N ranks and
`model.safetensors.index.json`. A tensor has the name of its leaf. If each rank has its own bytes
of a leaf, they are called `NAME@rankR`. If a replicated leaf is divided, its rows are called
`NAME@rowsSTART-STOP`. The header's metadata holds every tensor's xxh3 checksum, the header's own,
and the step.
"""
