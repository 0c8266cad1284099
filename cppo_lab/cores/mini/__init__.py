"""The embedded core: small transformers on synthetic tasks, on one CPU core or a GPU.

Guarantees of this package:

- Results depend on the `RunSpec` and the arithmetic of the machine alone: every random stream is seeded by the run.
- `checkpoint.py` holds everything that determines the rest of a run.
- `warm_start.py` replaces pre-training; a start is cached per seed and model, and its digest is a tag of the run.

A step: `sampler.py` draws responses from `policy.py`, `objective.py` computes the loss of a minibatch, `trainer.py`
updates `model.py`. `tasks/` has the problems and their grading.
"""
