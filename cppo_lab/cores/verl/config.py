"""verl's configuration for a run: our values override verl's own tree. A key that verl does not have is an error."""

import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf, open_dict

from cppo_lab.cores.verl.checks import check_config
from cppo_lab.cores.verl.files import Files, planned_files
from cppo_lab.cores.verl.placement import check_keys
from cppo_lab.cores.verl.run_settings import settings
from cppo_lab.errors import unknown
from cppo_lab.spec import AnswersSpec, LayoutSpec, PathsSpec, VerlRun
from cppo_lab.spec.parse import parse_run

SECTION = "cppo_lab"  # ours in verl's tree


@dataclass(frozen=True)
class LabSettings:
    """Our own section of verl's tree: the settings of the run that the trainer's process needs."""

    spec: VerlRun
    folder: Path
    answers: AnswersSpec | None = None  # which responses to keep; None: none


def lab_settings(config: DictConfig) -> LabSettings:
    """Our section of `config`, typed again."""
    values = OmegaConf.to_container(config[SECTION], resolve=True)
    assert isinstance(values, dict)
    spec = parse_run(values["spec"], "cppo_lab.spec")
    assert isinstance(spec, VerlRun)
    answers = values.get("answers")
    return LabSettings(
        spec, Path(values["folder"]), None if answers is None else AnswersSpec.model_validate(answers)
    )


def verl_config(spec: VerlRun, layout: LayoutSpec, files: Files) -> DictConfig:
    """The complete tree for verl's `main_ppo`.

    Raises UserError for a key of `layout.verl` that verl's tree does not have, or that a layout must not set.
    """
    defaults = _verl_tree("megatron" if layout.strategy == "megatron" else "dp")
    config = copy.deepcopy(defaults)
    values = settings(spec, layout, files)
    for key, value in values.items():
        _check_exists(defaults, key, "settings of a run")
        _set(config, key, value)
    check_keys(layout)
    for key, value in layout.verl.items():
        _check_exists(defaults, key, f"layout {layout.name}")
        _set(config, key, value)
    with open_dict(config):
        config[SECTION] = {
            "spec": spec.model_dump(mode="json", exclude_none=True),
            "folder": str(files.folder),
        }
    OmegaConf.resolve(config)  # once, not at every access
    return config


def plain_config(spec: VerlRun, layout: LayoutSpec, paths: PathsSpec, runs: Path) -> dict[str, Any]:
    """verl's tree for a run as plain values, with the checks that precede training. Needs no files and no GPU.

    Raises UserError as `verl_config` and `checks.check_config`.
    """
    config = verl_config(spec, layout, planned_files(spec, paths, runs, runs / spec.run_id))
    check_config(spec, layout, config)
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


@cache
def _verl_tree(engine: str) -> DictConfig:
    """verl's defaults."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[f"model_engine={engine}"])


def _set(config: DictConfig, key: str, value: Any) -> None:
    with open_dict(config):
        OmegaConf.update(config, key.removeprefix("+"), value, merge=False, force_add=True)


def set_mismatch(config: DictConfig, wanted: bool) -> None:
    """Set whether the loss reports the sums of `mismatch/*`, which is not part of a run's identity."""
    _set(config, "actor_rollout_ref.actor.policy_loss.mismatch", wanted)


def set_answers(config: DictConfig, wanted: AnswersSpec | None) -> None:
    """Set which responses the trainer keeps, which is not part of a run's identity."""
    if wanted is not None and wanted.keep:
        _set(config, f"{SECTION}.answers", wanted.model_dump(mode="json"))


def _check_exists(defaults: DictConfig, key: str, where: str) -> None:
    """Raise UserError for a key that verl does not have; the message lists the keys next to its first wrong part.

    A key that begins with `+` may be new, as in Hydra, and so may any key in a section that verl leaves empty.
    """
    section: Any = defaults
    before = ""
    for part in () if key.startswith("+") else key.split("."):
        if not isinstance(section, DictConfig) or part not in list(section):
            if isinstance(section, DictConfig) and not section:
                return
            beside = list(section) if isinstance(section, DictConfig) else []
            raise unknown(f"key of verl ({where})", f"{before}{part}", [f"{before}{one}" for one in beside])
        section, before = OmegaConf.select(defaults, f"{before}{part}"), f"{before}{part}."
