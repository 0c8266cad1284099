"""verl's replay buffer with a shorter wait, and a warning about failed rollouts."""

import sys
from collections.abc import Callable
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

POLL_SECONDS = 0.1  # verl checks for a complete batch every 2 s


class LabReplayBuffer(ReplayBuffer):
    """Selected with `trainer.v1.sampler.custom_sampler`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, poll_interval=POLL_SECONDS)
        self.on_validation: Callable[[Any], None] | None = None  # called with each batch of a validation

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        """Wait for a complete batch.

        Raises RuntimeError if all of its responses failed.
        """
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        failed = len(self.failure_keys[partition_id])
        if not batch.keys:
            raise RuntimeError(
                f"all {batch_size} rollouts ({partition_id}) failed: the run's log has the errors"
            )
        if failed:
            print(
                f"step {global_steps}: {failed} of {batch_size} prompts ({partition_id}) have responses that failed; "
                "they are missing from training, and count as wrong in validation",
                file=sys.stderr,
                flush=True,
            )
        if partition_id == "val" and self.on_validation is not None:
            self.on_validation(batch)  # verl clears the batch before it reports the result
        return batch, metrics
