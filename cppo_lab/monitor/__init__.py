"""The state of runs, what they print, and ending them, whoever launched them and with whatever launcher.

Guarantees of this package:

- Looking writes nothing. A state comes from `cppo_lab.runs.state`, so `status` and `plan` agree (`status.py`).
- Thousands of runs are looked at together: one small file each, and one look at the queues. No store is asked.
- A cancelled run ends in order and records that; the next launch resumes it (`cancel.py`).

Begin with `status.py`: states as values, text, JSON and CSV; `watch.py` repeats it until all runs have ended;
`logs.py`: what runs have printed.
"""
