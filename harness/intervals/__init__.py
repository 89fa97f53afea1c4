"""The interval between checkpoints: costs, failures, policies, and the time that trains.

A training script can use it. `adaptive` needs the standard library alone, the rest numpy and scipy.

- `costs`: what a checkpoint and a failure cost, in seconds;
- `policies`: when to take a checkpoint;
- `checkfreq`: a policy that profiles, and adapts to a budget;
- `expected`: the effective training time under failures at random instants;
- `failures`: failures of nodes, drawn or from real traces;
- `adaptive`: a policy for a training script, which measures the costs itself;
- `levels`: checkpoints of several levels, under failures of several classes;
- `convergence` and `stopped`: policies that look at the loss, and jobs that are stopped early;
- `replay`: the effective training time under given failures.
"""
