"""A run on disk: its folder, lock, status, spool of metrics, and cancellation.

Guarantees of this package:

- One process trains a run at a time. `lock.py` holds `runs/<id>/lock` (flock); the kernel releases it when the process
  ends.
- A metric is in the spool before `log()` returns (`spool.py`, `events.py`). The spool is only appended to.
- `state.py` is the only place that decides the state of a run and its text: `plan`, `launch` and `status` ask it.
- `offsets.py` records how much of the spool a store has. It may be lost, since uploads are idempotent.
- `folder.py` writes `status.json` and marks cancelled runs; `queue.py` lists what a local launcher has yet to start.
- `machine.py` says where, with what and by which code a run is trained: single facts, never the whole environment.

Begin with `spool.py` and `folder.py`. `cppo_lab.attempt` trains a run with these. No link in a run's folder is
followed: files are opened by `cppo_lab.safe_open` (docs/security.md).
"""
