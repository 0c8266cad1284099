"""A run of the embedded trainer."""

import torch

from cppo_lab.cores.base import MetricSink, Resources
from cppo_lab.cores.loop import run
from cppo_lab.cores.mini.trainer import Trainer
from cppo_lab.schema import Outcome
from cppo_lab.spec import MiniRun


def train(spec: MiniRun, sink: MetricSink, resources: Resources) -> Outcome:
    """Train `spec` to its last step or to its collapse, see `cores.loop.run`."""
    torch.set_num_threads(resources.threads)
    return run(Trainer(spec, resources), spec, sink, resources)
