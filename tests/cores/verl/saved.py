"""Checkpoints that verl's own engine writes on one rank and on two, without Ray: for `test_export`.

`save(model, folder)` leaves `folder`/1/actor and `folder`/2/actor, both of `model` with every weight times FACTOR.
"""

import os
from pathlib import Path

import torch
import torch.multiprocessing as mp

RANKS = (1, 2)
FACTOR = 1.25  # another model than the one that is loaded, and exact in every precision


def _work(rank: int, ranks: int, model: str, folder: str) -> None:
    """One process of a group of `ranks`."""
    from tests.cores.verl.cpu_engine import join, make_worker

    place = Path(folder)
    join(rank, ranks, place / f"store{ranks}")
    torch.set_num_threads(1)
    worker = make_worker(Path(model), micro_batch=1, load_tokenizer=True)
    with torch.no_grad():
        for parameter in worker.engine.module.parameters():
            parameter.mul_(FACTOR)
    worker.save_checkpoint(str(place / str(ranks) / "actor"), global_step=4)
    torch.distributed.destroy_process_group()


def _groups(_: int, model: str, folder: str) -> None:
    """A process that loads verl once, and forks the groups: neither torch nor gloo has begun."""
    from tests.cores.verl import cpu_engine

    cpu_engine.load()
    for ranks in RANKS:
        mp.start_processes(_work, (ranks, model, folder), nprocs=ranks, start_method="fork")


def save(model: Path, folder: Path) -> None:
    """See above."""
    before = dict(os.environ)
    try:
        mp.spawn(_groups, (str(model), str(folder)))
    finally:
        os.environ.clear()
        os.environ.update(before)
