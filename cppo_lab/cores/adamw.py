"""torch's AdamW for the embedded cores, without the import of `torch._dynamo`."""

import inspect
from typing import TYPE_CHECKING

import torch
from torch.optim import AdamW as TorchAdamW
from torch.optim import Optimizer


class AdamW(TorchAdamW):
    """`torch.optim.AdamW`: the same numbers, the same state, for code that is not compiled by `torch.compile`.

    torch decorates an optimiser's methods for its compiler, and the decorators import `torch._dynamo` at their first
    call. That costs 1.1 s of CPU time in each process that trains, and a small run takes a few seconds.
    """

    if not TYPE_CHECKING:
        step = torch.no_grad()(inspect.unwrap(TorchAdamW.step))
        add_param_group = inspect.unwrap(Optimizer.add_param_group)
        zero_grad = inspect.unwrap(Optimizer.zero_grad)
        state_dict = inspect.unwrap(Optimizer.state_dict)
        load_state_dict = inspect.unwrap(Optimizer.load_state_dict)
