"""The verl core: verl's own synchronous trainer with our rules, metrics, answers and stopping.

Guarantees of this package:

- verl is not forked. `api_contract.py` lists everything that is used of it, and `check_api.py` refuses a version in
  which one of these differs.
- `config.py` sets values over verl's own configuration tree; a key that verl does not have is an error.
- `policy_loss.py` is the only way from verl's tensors to a rule, on padded or packed batches, over FSDP or Megatron.
- Ray is private to the run: on loopback with a token (`ray_local.py`), or within one Slurm job (`ray_nodes.py`).

`core.py` starts a run, `trainer.py` is the trainer, `worker.py` a rank, `rollout/` the sampling. See docs/verl.md.
"""
