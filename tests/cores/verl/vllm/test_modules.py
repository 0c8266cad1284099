"""The modules beside this one, each a process in the environment of vLLM: vLLM's own front end with our columns, and
our loss on a real Megatron GPTModel with tensor parallelism.
"""

from pathlib import Path

import pytest

from tests.cores.verl.conftest import LOG, ran
from tests.requirement import VLLM, VLLM_PYTHON


@pytest.mark.slow
@pytest.mark.parametrize("module", ["front_end", "megatron_ranks"])
def test_all_that_it_asserts_holds(tmp_path: Path, module: str) -> None:
    VLLM.demand()
    ended = ran(tmp_path, f"vllm.{module}", python=str(VLLM_PYTHON))
    assert ended == 0, (tmp_path / LOG).read_text()[-3000:]
