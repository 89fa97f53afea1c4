"""The interval between checkpoints: costs, failures, policies, and the time that trains.

A training script can use it. `adaptive` needs the standard library alone, the rest numpy and scipy.

- `costs`: what a checkpoint and a failure cost, in seconds;
- `policies`: when to take a checkpoint;
- `expected`: the effective training time under failures at random instants;
- `failures`: failures of nodes, drawn or from real traces;
- `adaptive`: a policy for a training script, which measures the costs itself;
- `replay`: the effective training time under given failures.
"""
