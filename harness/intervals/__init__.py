"""The interval between checkpoints: costs, failures, policies, and the time that trains.

A training script can use it. These need the standard library alone:

- `values`: what times and shares may be;
- `costs`: what a checkpoint and a failure cost, in seconds;
- `policies`: when to take a checkpoint;
- `checkfreq`: a policy that profiles, and adapts to a budget;
- `adaptive`: a policy for a training script, which measures the costs itself;
- `expected`: the effective training time under failures at random instants.

The rest needs numpy and scipy:

- `failures`: failures of nodes, drawn or from real traces;
- `replay`: the effective training time under given failures;
- `elastic`: the same for a job that goes on with fewer nodes;
- `levels`: checkpoints of several levels, under failures of several classes;
- `convergence` and `stopped`: policies that look at the loss, and jobs that are stopped early;
- `consistency`: the intervals with which a published share agrees.
"""
