"""A run on disk: its folder, lock, status, spool of metrics, cancellation and state.

Guarantees of this package:

- One process trains a run at a time. `folder.py` holds `runs/<id>/lock` (flock); the kernel releases it when the
  process ends.
- A metric is in the spool before `Recorder.log()` returns (`recorder.py`, `spool.py`). The spool is only appended to.
- `state.py` is the only place that decides the state of a run and its text: `plan`, `launch` and `status` ask it.
- `folder.py` writes `status.json`, marks cancelled runs, and lists what a local launcher has yet to start.
- `machine.py` says where, with what and by which code a run is trained: single facts, never the whole environment.

Begin with `spool.py` and `folder.py`. `cppo_lab.runs.attempt` trains a run with these; `cppo_lab.tracking` uploads the
spool. No link in a run's folder is followed: files are opened by `cppo_lab.files` (docs/security.md).
"""
