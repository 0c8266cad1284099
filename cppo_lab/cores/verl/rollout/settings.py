"""Our keys of the rollout, `actor_rollout_ref.rollout.engine_kwargs.cppo_lab`, typed and checked."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from cppo_lab.errors import UserError, unknown

CPU_ROLLOUT = "cppo_cpu"  # `rollout.name` of the CPU server
ENGINE_KEY = "cppo_lab"
# The number of mu's most likely tokens that a request asks for. The agent loop adds it to `sampling_params` of training
# requests only, and the rollout servers remove it before they call an engine.
TOPK_REQUEST = "cppo_topk"
TOPK_DTYPE_REQUEST = "cppo_topk_dtype"
# Names of the columns, the same in `TokenOutput.extra_fields` and in TransferQueue.
TOPK_IDS = "rollout_topk_ids"
TOPK_LOGP = "rollout_topk_logp"
TOPK_DTYPES = ("float16", "float32")
# Replaces the training step in the seeds of validation, which are thus the same at every validation.
VALIDATION_STEP = -1


@dataclass(frozen=True)
class RolloutSettings:
    """What the rollout keeps of mu and how requests are seeded."""

    topk: int = 0  # tokens of mu kept per response token; 0: none
    topk_dtype: str = "float16"  # of the kept log-probabilities
    seed: int = 0  # of the run
    seed_requests: bool = True  # a seed for each training request; validation requests always have one

    def __post_init__(self) -> None:
        if isinstance(self.topk, bool) or not isinstance(self.topk, int) or self.topk < 0:
            raise UserError(
                f"engine_kwargs.{ENGINE_KEY}.topk={self.topk!r} is not a count: give 0 (none) or more"
            )
        if self.topk_dtype not in TOPK_DTYPES:
            raise unknown(f"engine_kwargs.{ENGINE_KEY}.topk_dtype", self.topk_dtype, TOPK_DTYPES)

    @classmethod
    def read(cls, engine_kwargs: Mapping[str, Any]) -> "RolloutSettings":
        """The settings below `rollout.engine_kwargs`; defaults for missing keys.

        Raises UserError for an unknown key or an invalid value.
        """
        given = dict(engine_kwargs.get(ENGINE_KEY) or {})
        valid = [field.name for field in fields(cls)]
        for name in given:
            if name not in valid:
                raise unknown(f"key of engine_kwargs.{ENGINE_KEY}", name, valid)
        return cls(**given)

    def request_seed(self, step: int, source: str, index: object, session: int) -> int:
        """Seed of one request, 63 bits: a stable hash, so that a resumed run draws the same as an uninterrupted run.

        `step`: training step or `VALIDATION_STEP`; `source` and `index` name the problem (indices of different
        data sets overlap); `session` numbers the responses of a problem.
        """
        name = "\0".join(str(part) for part in (self.seed, step, source, index, session))
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1
