"""What runs record, and how it gets into MLflow.

Guarantees of this package:

- `Recorder.log` writes to the run's spool and returns; no training step waits for a server (`recorder.py`).
- Data of training runs reach MLflow in one way, `upload.py`, and uploading twice gives the same result.
- A run is found in MLflow by its record's token before it is created; its points have the times of their measurement.
- The output of attempts is recorded without passwords.
- `upload.py` (`retire`): a finished run's result stays until the new one is there.

Begin with `recorder.py`, then `upload.py`, `shipper.py` (the thread), `ship_process.py`. How a run's folder looks is
the matter of `cppo_lab.runs`, MLflow's client that of `cppo_lab.store`. docs/tracking.md is for users.
"""
