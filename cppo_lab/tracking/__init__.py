"""What runs record, and its upload to MLflow.

Guarantees of this package:

- `recorder.py` writes to the run's own folder first (`cppo_lab.runs`); no training step waits for a store.
- `shipping.py` is the only way from there to MLflow. It may be killed and repeated at any point: nothing is lost or
  recorded twice. It runs in the trainer's thread or process (`shipper.py`, `ship_process.py`) and in `cppo sync`.
- `environment.py`, `output.py`: selected facts and masked output; secrets never reach tags, parameters or files.
- Runs appear in MLflow as described by `naming.py`, `parents.py` and `views.py`.

Reports read the results through `analysis`.
"""
