"""MLflow: how runs get there, and how they are read.

Guarantees of this package:

- Data of training runs reach MLflow in one way, `upload.py`, and uploading twice gives the same result.
- A run is found in MLflow by its record's token before it is created; its points have the times of their measurement.
- `cppo_lab/runs/spool.py` records how much of a run's folder a store has. It may be lost, since uploads are idempotent.
- `upload.py` (`retire`): a finished run's result stays until the new one is there.

Begin with `client.py` and `read.py`, then `upload.py`. `address.py`, `history.py` and `services.py` (a
webhook, a mirror) import no MLflow. How a run's folder looks is the matter of `cppo_lab.runs`. docs/tracking.md is
for users.
"""
