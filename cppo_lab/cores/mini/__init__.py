"""The embedded core: GRPO with any rule on a small transformer and arithmetic tasks, in one process.

Guarantees of this package:

- mu is the sampler's log-probability of each token, never recomputed by the training pass (`sampler.py`).
- A checkpoint has all that decides further numbers, and is replaced as a whole (`../checkpoint.py`).
- A model's warm start is trained once for all runs that begin with it, and kept in the folder of all runs
  (`warm_start.py`).
- Groups without variance in their rewards, which have no learning signal, take part in no update (`trainer.py`).

Begin with `trainer.py` (one step), `objective.py` (one minibatch) and `model.py`. `tasks.py`: problems and their
grading; `sampler.py`: a rollout policy that differs as rollout engines do.
"""
