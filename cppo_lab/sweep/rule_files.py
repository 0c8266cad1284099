"""Rule files of other packages: `rule/<name>.yaml` next to a sweep file, in the format of those in conf/rule.

Like the sweep file next to it, a rule file is untrusted: it has constants and must not name code. The rule's location
comes from an entry point of an installed package, CPPO_RULES, or the command line (`rule.path`).
"""

import re
from pathlib import Path
from typing import Any

from cppo_lab.errors import UserError, unknown
from cppo_lab.rules import ENTRY_POINT, GROUP, RULES, VARIABLE, from_environment
from cppo_lab.spec.rule import VERL
from cppo_lab.sweep.groups import add_rules, groups, shipped
from cppo_lab.sweep.source import mapping, read_text

FOLDER = "rule"
RULE_PATH = "rule.path"
CONSTANT = re.compile(
    r"\$\{(trust_region|recipe)\.[a-z][a-z0-9_]*\}"
)  # a reference to the run's model or recipe
# Keys of a file that also sets other groups of its method.
WHOLE = ("defaults", "rule", "advantage", "training")
NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
PATH_REMEDY = (
    f"a file does not say what is imported: install the rule's package with an entry point in {GROUP!r}, or name it on "
    f"the command line (rule.path=package.module:function) or in {VARIABLE}"
)


def read_rules(sweep: Path, source: str) -> None:
    """Read the rules next to a sweep file; `source` is the sweep's name in messages.

    Raises UserError for an invalid rule file, or a name that another rule already has.
    """
    folder = sweep.parent / FOLDER
    if not folder.is_dir():
        return
    for file in sorted(folder.glob("*.yaml")):
        add_rules({file.stem: _read(file)}, str(file))


def _read(file: Path) -> dict[str, Any]:
    """The content of a rule file, in the form that Hydra needs."""
    name = file.stem
    if not NAME.fullmatch(name):
        raise UserError(f"rule file {file}: its name must be lower-case letters, digits and _")
    if name in shipped()["rule"]:
        raise UserError(f"rule file {file}: rule {name!r} comes with the product: give yours another name")
    try:
        values = mapping(read_text(file, str(file)), str(file), CONSTANT)
    except UserError as error:
        raise UserError(re.sub("^sweep (file )?", "rule file ", str(error))) from None
    whole = isinstance(values.get("rule"), dict)
    rule = values["rule"] if whole else values
    if wrong := next((key for key in values if whole and key not in WHOLE), None):
        raise UserError(f"rule file {file}: {unknown('key', wrong, WHOLE)}")
    if whole and "defaults" in values:
        _check_defaults(values["defaults"], file)
    if not isinstance(rule.get("name"), str):
        raise UserError(
            f"rule file {file}: name={rule.get('name')!r} must be the rule's name: add name: {name}"
        )
    if rule.get("path") is not None:
        raise UserError(f"rule file {file}: rule.path={rule['path']!r}: {PATH_REMEDY}")
    if rule["name"] not in RULES and not rule["name"].startswith(VERL):
        # It has its own code and is not a built-in rule with other constants.
        rule["path"] = from_environment(rule["name"]) or ENTRY_POINT
    return {**values, "rule": rule} if whole else {"rule": rule}


def _check_defaults(defaults: Any, file: Path) -> None:
    """Check that a rule file chooses the divergence and nothing else."""
    for entry in defaults if isinstance(defaults, list) else [defaults]:
        if not (isinstance(entry, dict) and list(entry) == ["override /divergence"]):
            raise UserError(f"rule file {file}: defaults={entry!r} must be `- override /divergence: OPTION`")
        if (option := entry["override /divergence"]) not in groups()["divergence"]:
            raise UserError(f"rule file {file}: {unknown('divergence', option, groups()['divergence'])}")
