"""The interval between checkpoints: costs, failures, policies, and the time that trains.

It needs numpy and scipy alone, so that a training script can use it.

- `costs`: what a checkpoint and a failure cost, in seconds;
- `policies`: when to take a checkpoint;
- `expected`: the effective training time under failures at random instants;
- `failures`: failures of nodes, drawn or from real traces;
- `replay`: the effective training time under given failures.
"""
