"""The embedded cores' AdamW is torch's, and a run of theirs does not load torch's compiler."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor

from cppo_lab.cores.loop import AdamW
from tests.conftest import TINY

ROOT = Path(__file__).parents[2]


def trained(
    kind: type[torch.optim.AdamW], start: dict[str, object] | None = None
) -> tuple[Tensor, torch.optim.AdamW]:
    """A cubic's parameters after 20 steps, clipped, under a schedule; `start`: the optimiser's state to begin from."""
    generator = torch.Generator().manual_seed(0)
    parameter = torch.randn(50, generator=generator).requires_grad_()
    optimizer = kind([parameter], lr=1e-2, betas=(0.9, 0.98), weight_decay=0.1, fused=True)
    if start is not None:
        optimizer.load_state_dict(start)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=21)
    for _ in range(20):
        optimizer.zero_grad(set_to_none=True)
        (parameter**3).sum().backward()
        torch.nn.utils.clip_grad_norm_([parameter], 1.0)
        optimizer.step()
        schedule.step()
    return parameter, optimizer


def test_its_steps_and_its_state_are_those_of_torch() -> None:
    """Checkpoints of earlier versions have torch's state."""
    (ours, optimizer), (theirs, other) = trained(AdamW), trained(torch.optim.AdamW)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert ours.requires_grad and ours.grad_fn is None
    assert str(optimizer.state_dict()) == str(other.state_dict())
    continued = [
        trained(kind, state.state_dict())[0]
        for kind, state in ((AdamW, other), (torch.optim.AdamW, optimizer))
    ]
    torch.testing.assert_close(*continued, rtol=0, atol=0)


RUN = """
import json, sys
from cppo_lab.cli import main
tiny = json.loads(sys.argv[1])
assert main(["launch", "quickstart", "variant=cppo", "seed=0", "launcher=inline", *tiny]) == 0
assert "torch" in sys.modules
assert main(["launch", "quickstart_exact", "variant=cppo", "seed=0", "launcher=inline", "training.t_stop=5"]) == 0
assert "torch._dynamo" not in sys.modules
"""


def test_no_run_of_an_embedded_core_loads_the_compiler(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(TINY)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
