"""The best model of a run of the embedded core as a folder in Hugging Face's format: its transformer is a Qwen3."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cppo_lab.cores.base import BEST_MODEL, Exported
from cppo_lab.cores.verl.hub_folder import quiet, require_complete
from cppo_lab.errors import UserError
from cppo_lab.files import open_below
from cppo_lab.installed import install_extra
from cppo_lab.spec import MiniRun, RunSpec


def export(spec: RunSpec, runs: Path, target: Path, say: Callable[[str], None]) -> Exported:
    """Write the best model of `spec` to `target`. As `cores.base.Exporter`."""
    assert isinstance(spec, MiniRun)
    file = open_below(runs, spec.run_id, BEST_MODEL)
    if file is None:
        raise UserError(
            f"run {spec.run_id} has kept no checkpoint: there is no {BEST_MODEL} in {runs / spec.run_id}. It is "
            "written at the first validation after step 0, by this version; `cppo launch SWEEP --replace` trains runs "
            "of an older one again"
        )
    for package in ("transformers", "tokenizers", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            file.close()
            raise UserError(
                f"package {package!r} is not installed, and models are exported by it: {install_extra('verl')}"
            )
    from cppo_lab.cores.checkpoint import read_checkpoint, same_form
    from cppo_lab.cores.mini.model import Transformer
    from cppo_lab.cores.mini.tasks.base import make_task
    from cppo_lab.cores.verl.export_hf import as_fast_tokenizer, as_qwen3

    tokenizer = make_task(spec.data).tokenizer
    context = spec.data.prompt_length + spec.rollout.max_response_length
    model = Transformer(spec.model.architecture, tokenizer.vocabulary, context)
    say(f"reading {BEST_MODEL}")
    with file:
        try:
            checkpoint = read_checkpoint(file, spec.run_id)
            state = checkpoint["trainer"]
            weights: Any = state.get("model") if isinstance(state, dict) else None
            if not same_form(weights, model.state_dict()):
                raise ValueError("it contains the weights of another model")
        except ValueError as error:
            raise UserError(f"{runs / spec.run_id / BEST_MODEL} is not exported: {error}") from None
    model.load_state_dict(weights)
    say("writing the model")
    with quiet():
        as_qwen3(model, tokenizer).save_pretrained(target)
        as_fast_tokenizer(tokenizer).save_pretrained(target)
    dtype, parameters = require_complete(target)
    return Exported(checkpoint["history"][-1][0], dtype, parameters)
