"""The rollout as verl runs it: Ray actors, verl's client, agent loop workers and TransferQueue."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cppo_lab.cores.verl.ray_local import local_ray_settings

pytestmark = [pytest.mark.verl, pytest.mark.slow]
JOB = Path(__file__).with_name("rollout_job.py")
ROOT = Path(__file__).parents[3]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="cppo-") as folder:
        yield Path(folder)


def test_responses_reach_transfer_queue_with_their_topk(tiny_model: Path, short_folder: Path) -> None:
    arguments, environment = local_ray_settings(short_folder / "ray", num_cpus=8, num_gpus=2)
    plugin = {"VERL_USE_EXTERNAL_MODULES": "cppo_lab.cores.verl.plugin", "CPPO_LAB_VERL_DEVICE": "cpu"}
    done = subprocess.run(
        [sys.executable, str(JOB), str(tiny_model), json.dumps(arguments)],
        env=os.environ | environment | plugin | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    seen = json.loads(done.stdout.strip().splitlines()[-1])
    assert seen["sessions"] == [f"{index}_{session}_0" for index in range(3) for session in range(2)]
    assert {"rollout_log_probs", "rollout_topk_ids", "rollout_topk_logp"} <= set(seen["columns"])
    assert seen["dtypes"] == ["torch.int32", "torch.float16"]
    assert seen["rows"] == [[length, 6] for length in seen["lengths"]]
    assert len(set(seen["lengths"])) > 1  # rows of different length in one batch
    assert seen["error"] < 1e-3 and seen["error_after"] < 1e-3
    assert all(seen["repeated"]) and all(seen["validations_equal"]) and seen["sessions_differ"]
    assert not {"rollout_topk_ids", "rollout_topk_logp"} & set(seen["validation_columns"])
    assert seen["steps"] == [3, 4]
