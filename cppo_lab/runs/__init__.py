"""A run on disk: its folder, lock, status, spool of metrics, cancellation and state, and the attempts at it.

What is true of `runs/<id>/`, whatever is killed:

- One process trains a run at a time: it holds `lock` (flock), which the kernel releases when the process ends.
- A metric is in the spool before `Recorder.log()` returns, or, on a full disk, in memory until there is room. The
  spool is only appended to; what is on file stays. (verl's trainer is another process: its rows are in another file
  first, from which the process that holds the lock passes them to `log`.)
- `status.json` is a convenience for whoever looks on: it may be seconds older than the spool, and says `running` until
  somebody says otherwise. Lock, status and spool together are the state.

So a trainer that is killed at step 20 leaves a free lock, a status that says `running`, and a spool with the steps up
to 20 and no end: the run is `partial`, once its launcher has taken it off its list. That launcher, after all of its
jobs, or else the next launch or `cppo status --repair`, adds the missing end in a file of its own
(`launch.queues.record_dead_ends`, `recorder.record_end`). Then a new attempt takes the lock and continues the same
record in a further file. Its core resumes from the newest checkpoint, which embedded cores write once a validation is
on file (`cppo_lab/cores/loop.py`; runs of the exact core that are trained together, at most every ten seconds): killed
at step 20 with a checkpoint of step 15, it trains 16 to 20 again with the same numbers (of verl: on a CPU,
docs/tracking.md), which are not recorded again, and adds step 21. Without a usable checkpoint a new record, and so a
new MLflow run, begins; readers take the newer. The runs of a group end together: those that had begun are `partial`.

| module | what it decides |
| --- | --- |
| `spool.py` | the format of the record, how it is written and read, scores, how much of it a store has |
| `folder.py` | status, lock, cancellation, the lists of launchers |
| `recorder.py` | what an attempt records, also on a full disk, and how an attempt that died is ended |
| `state.py` | the state of a run and its text, for every command |
| `attempt.py` | training: from taking the lock to recording the end |
| `machine.py`, `tags.py` | where, with what and by which code (or its copy) a run is trained; its names and tags |
| `export.py` | a run's model for other programs; archives; what may be freed on the disk |

Begin with `spool.py` and `folder.py`. `cppo_lab.tracking` uploads the spool: a process beside a living launcher, or
the next launch or `cppo sync`. No link in a run's folder is followed: files are opened by `cppo_lab.files`
(docs/security.md).
"""
