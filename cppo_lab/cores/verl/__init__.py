"""The verl core: our rules inside verl's trainer.

Guarantees of this package:

- Every part of verl that we use is in `api_contract.py`; `check_api.py` says where an installed verl differs.
- The settings that decide a run's numbers come from its `RunSpec`; a layout cannot change them (`config.py`,
  `placement.py`). A key that verl does not have is an error before the start.
- Ray belongs to this run and ends with it. On one machine it listens on loopback only (`cluster.py` states the limits).
- A killed run goes on from its last whole checkpoint, and its record is cut there (`checkpoints.py`).

Begin with `core.py` (a run), `trainer.py` (verl's, extended), `loss.py` (our loss), then `rollout/` (mu and its
Top-K). Ray and verl are imported late: they read the environment. docs/verl.md is for users.
"""
