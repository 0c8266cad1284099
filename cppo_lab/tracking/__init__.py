"""MLflow: how runs get there, and how they are read.

Guarantees of this package:

- What training runs record reaches MLflow only through `upload.py`, and uploading twice gives the same result.
- A run is found in MLflow by its record's token before it is created; its points have the times of their measurement.
- `cppo_lab/runs/spool.py` records how much of a run's folder a store has. It may be lost, since uploads are idempotent.
- `upload.py` (`retire`): a finished run's result stays until the new result is there.

A step on its way: `Recorder.log` writes it to the spool -> `uploader.uploading` has a process beside the training ->
its `upload_once`, every few seconds -> `upload.upload` -> `ship`, a `_Shipment` for each run's folder -> `_send_file`
reads the new lines, `_take` gathers them, `_flush` sends a batch, and the offset is noted in shipped.json. `_is_sent`
leaves out the points that a core's record keeps in `history.npz` alone (`validated_points`).

Begin with `client.py` and `read.py`, then `upload.py`. `address.py`, `history.py` and `services.py` (a
webhook, a mirror) import no MLflow. How a run's folder looks is the matter of `cppo_lab.runs`. docs/tracking.md is
for users.
"""

import logging
import os

# Else MLflow reports its use to its makers, as soon as it is imported.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
if os.environ.get("MLFLOW_LOGGING_LEVEL", "INFO").upper() not in logging.getLevelNamesMapping():
    del os.environ["MLFLOW_LOGGING_LEVEL"]  # MLflow could not be imported
