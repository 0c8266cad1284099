"""How a run appears in MLflow: its name, its tags, its configuration as parameters and as YAML, words in Markdown."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from cppo_lab import schema
from cppo_lab.core_records import core_if_installed
from cppo_lab.spec import LayoutSpec, PathsSpec, ResourcesSpec, RunSpec

BETWEEN = " · "  # the parts of a run's name
_LONGEST_NAME = 250  # characters, of MLflow's column
_NUMBERED = re.compile(r"(Table|Figure) (\d+)")
# Escaped as entities: MLflow's converter does not honour every backslash, and entities start no address or markup.
_MARKUP = re.compile(r"[&<>\\`*_\[\]#~|:!@]|(?<=www)\.")


def run_name(spec: RunSpec, variants: Mapping[str, str]) -> str:
    """`<variant> · s<seed> · <model>`; `variants` has the name of the run's variant in each of its sweeps.

    The model comes last, since MLflow's page cuts long names at their end. A variant's name has the values of the
    sweep's axes (`cppo w_min=0.6`), so two runs of a sweep never have the same, unless it is cut, since servers of
    databases refuse names of more than 250 characters.
    """
    names = dict.fromkeys(variants.values())
    # Of `cppo` and `cppo w_min=0.8` of another sweep, the second says both.
    whole = [name for name in names if not any(other.startswith(f"{name} ") for other in names)]
    variant = " / ".join(whole) or spec.rule.name
    end = f"{BETWEEN}s{spec.seed}{BETWEEN}{spec.model.name}"
    return variant[: _LONGEST_NAME - len(end)] + end


def variants_in(tags: Mapping[str, str]) -> dict[str, str]:
    """The name of a run's variant in each sweep, by its sweep tags."""
    prefix = schema.TAG_SWEEP_PREFIX
    return {key.removeprefix(prefix): value for key, value in tags.items() if key.startswith(prefix)}


def names(spec: RunSpec) -> dict[str, Any]:
    """The fields of a status that say what the run is (`runs.folder.NAMES`, without its variants)."""
    return {
        "core": spec.core,
        "rule": spec.rule.name,
        "model": spec.model.name,
        "seed": spec.seed,
        "t_stop": spec.training.t_stop,
    }


def run_tags(spec: RunSpec) -> dict[str, str]:
    """The tags that follow from the configuration."""
    start = {schema.TAG_SEED_FIXES_START: "true"} if core_if_installed(spec.core).seed_fixes_start else {}
    return {
        schema.TAG_RUN_ID: spec.run_id,
        schema.TAG_RULE: spec.rule.name,
        schema.TAG_MODEL: spec.model.name,
        schema.TAG_CORE: spec.core,
        schema.TAG_SEED: str(spec.seed),
        schema.TAG_T_STOP: str(spec.training.t_stop),
        schema.TAG_STATUS: schema.RUNNING,
    } | start


def figure_tag(feeds: Iterable[str]) -> dict[str, str]:
    """TAG_FIGURE with tables and figures of the paper, each once, tables first; no tag where there are none."""
    named = sorted(set(feeds), key=_place)
    return {schema.TAG_FIGURE: ", ".join(named)} if named else {}


def _place(feed: str) -> tuple[int, int, str]:
    """The position of a table or figure among the others."""
    match = _NUMBERED.fullmatch(feed)
    return (match[1] == "Figure", int(match[2]), feed) if match else (2, 0, feed)


def merged(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """The `new` tags of a resumed run, merged with its `old` ones.

    List-valued tags (schema.LISTED, and the figures that the run feeds) are united. A run that was ever trained by
    uncommitted code stays marked as dirty. Any other tag is replaced.
    """
    tags = dict(new)
    for key in schema.LISTED & new.keys():
        tags[key] = " ".join(dict.fromkeys([*old.get(key, "").split(), *new[key].split()]))
    if "true" in (old.get(schema.TAG_DIRTY), new.get(schema.TAG_DIRTY)):
        tags[schema.TAG_DIRTY] = "true"
    if schema.TAG_FIGURE in new:
        both = (old.get(schema.TAG_FIGURE, ""), new[schema.TAG_FIGURE])
        tags |= figure_tag(feed for text in both for feed in text.split(", ") if feed)
    return tags


def dotted(values: Mapping[str, Any], prefix: str = "", null: bool = False) -> dict[str, Any]:
    """Nested values under dotted keys; what does not apply (None) is left out unless `null`."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= dotted(value, f"{prefix}{key}.", null)
        elif null or value is not None:
            flat[f"{prefix}{key}"] = value
    return flat


def flatten(values: Mapping[str, Any]) -> dict[str, str]:
    """The same as text, as the tracking store has them."""
    return {key: str(value) for key, value in dotted(values).items()}


def resolved_yaml(
    spec: RunSpec,
    layout: LayoutSpec | None = None,
    resources: ResourcesSpec | None = None,
    paths: PathsSpec | None = None,
) -> str:
    """Everything that was composed for a run as a YAML document, in the order of the configs.

    `run` alone decides `run_id`; constants that do not apply are left out there.
    """
    sections: dict[str, Any] = {
        "run_id": spec.run_id,
        "run": spec.model_dump(mode="json", exclude_none=True),
    }
    others = {"layout": layout, "resources": resources, "paths": paths}
    sections |= {
        name: section.model_dump(mode="json") for name, section in others.items() if section is not None
    }
    return as_yaml(sections)


def as_yaml(values: Mapping[str, Any]) -> str:
    """Plain values as a YAML document for people, in their order."""
    text: str = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)
    return text


def escaped(text: str) -> str:
    """`text` as a line of Markdown, shown literally: no markup, HTML or address in it takes effect."""
    return _MARKUP.sub(lambda sign: f"&#{ord(sign.group())};", " ".join(text.split()))


def code(text: str) -> str:
    """`text` as a piece of code, on one line. A backtick would end it, and a bar would end a table's cell."""
    line = " ".join(text.split())
    return escaped(line) if set(line) & {"`", "|"} or not line else f"`{line}`"
