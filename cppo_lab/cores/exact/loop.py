"""A run of the exact core."""

import torch

from cppo_lab.cores.base import MetricSink, Resources
from cppo_lab.cores.exact.trainer import Trainer
from cppo_lab.cores.loop import run
from cppo_lab.schema import Outcome
from cppo_lab.spec import ExactRun


def train(spec: ExactRun, sink: MetricSink, resources: Resources) -> Outcome:
    """Train `spec` on the CPU to its last step or to its collapse, see `cores.loop.run`."""
    torch.set_num_threads(resources.threads)
    return run(Trainer(spec), spec, sink, resources)
