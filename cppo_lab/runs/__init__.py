"""A run on disk: its folder, lock, status, spool of metrics, and cancellation.

What this room promises:

- One process trains a run at a time. `lock.py` holds `runs/<id>/lock` (flock); the kernel releases it when the process
  ends.
- A metric is in the spool before `log()` returns (`spool.py`, `events.py`). The spool is only appended to.
- `offsets.py` remembers how far a store has got with the spool. It may be lost: uploads are idempotent.
- `folder.py` writes `status.json` and the mark of a cancelled run; `queue.py`: what a local launcher has yet to start.

Begin with `spool.py` and `folder.py`. `cppo_lab.attempt` trains a run with these. No link in a run's folder is
followed: files are opened by `cppo_lab.safe_open` (docs/security.md).
"""
