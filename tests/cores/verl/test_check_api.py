"""The table of what we use of verl holds for the installed version, and names exactly what breaks."""

import ast
import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import verl.workers.rollout.base as rollout_base
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.workers.rollout.replica import TokenOutput

from cppo_lab.cores.verl import check_api
from tests.conftest import python
from tests.cores.verl.conftest import ROOT

# verl must be told its device before it is imported: a process per question.
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "PATH": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def test_the_installed_verl_is_as_expected() -> None:
    assert check_api.version_problem() is None
    assert check_api.check_api() == []


def test_what_is_missing_or_has_changed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(PPOTrainer, "_balance_batch")
    monkeypatch.setattr(PPOTrainer, "_update_actor", lambda self, batch, metrics, step: None)
    fields = {name: field for name, field in TokenOutput.model_fields.items() if name != "extra_fields"}
    monkeypatch.setattr(TokenOutput, "__pydantic_fields__", fields)
    monkeypatch.setattr(rollout_base, "_ROLLOUT_REGISTRY", {})
    balance, update, output, registry = check_api.check_api()
    assert ".TokenOutput (fields) has changed" in output
    assert "._ROLLOUT_REGISTRY (private dict) has changed" in registry
    name = "verl.trainer.ppo.v1.trainer_base.PPOTrainer"
    assert balance.startswith(f"{name}._balance_batch (overridden) is missing")
    assert update.startswith(f"{name}._update_actor (overridden) has changed")
    assert "['self', 'batch', 'metrics', 'step']" in update


def test_modules_that_are_missing_or_read_in_their_source() -> None:
    """vLLM's server is read: vLLM is not installed here."""
    [point] = (item for item in check_api.API_CONTRACT if item.attribute == "vLLMHttpServer.run_server")
    gone = point._replace(module="verl.no_such_module", attribute="thing", kind=check_api.CALL)
    changed = point._replace(parameters=("self", "arguments"))
    missing = point._replace(attribute="vLLMHttpServer.stream")
    assert check_api.check_api((point,)) == []
    first, second, third = check_api.check_api((gone, changed, missing))
    assert first == "verl.no_such_module.thing (called) is missing: No module named 'verl.no_such_module'"
    assert (
        "run_server (overridden) has changed: expected ['self', 'arguments'], found ['self', 'args']"
        in second
    )
    assert "no stream in" in third


# Forks a process per question from one that has what takes longest to import; none of it asks for the device.
FORKS = """
import json, os, sys, traceback
import ray, tensordict, torch, transformers

folder = sys.argv[1]
for name, (code, environment) in json.loads(sys.argv[2]).items():
    if not (pid := os.fork()):
        for number, kind in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{folder}/{name}.{kind}", os.O_WRONLY | os.O_CREAT), number)
        os.environ.update(environment)
        status = 0
        try:
            exec(code, {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    with open(f"{folder}/{name}.status", "w") as file:
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=file)
"""
PLUGIN = {"VERL_USE_EXTERNAL_MODULES": "cppo_lab.cores.verl.plugin"}
ASK = """
import sys
import verl
from verl.plugin.platform import PlatformRegistry, get_platform
from verl.utils.device import get_device_name
from verl.workers.engine import EngineRegistry
from verl.workers.rollout.base import get_rollout_class
from verl.workers.rollout.replica import RolloutReplicaRegistry
loaded = sorted(name for name in sys.modules if name.startswith("cppo_lab.cores.verl"))
print(PlatformRegistry.registered_names(), get_device_name())
print(loaded)
print(sorted(EngineRegistry._engines["language_model"]["fsdp2"]))
"""
SERVERS = "print(RolloutReplicaRegistry.get('cppo_cpu').__name__, get_rollout_class('cppo_cpu').__name__)\n"
SKLEARN = """
from transformers.utils import is_sklearn_available
print(is_sklearn_available(), "sklearn" in sys.modules)
"""
CASES = {
    "cpu": (ASK + SKLEARN + SERVERS, PLUGIN | {"CPPO_LAB_VERL_DEVICE": "cpu"}),
    "plain": (ASK, {}),
    "ours": (ASK, PLUGIN),
    "loud": ("import verl", PLUGIN | {"CPPO_LAB_VERL_DEVICE": "gpu"}),
}


def test_the_plugin_chooses_the_cpu_when_asked(tmp_path: Path) -> None:
    """verl imported in a fresh process of each case. Without being asked the device is verl's own choice."""
    python("-c", FORKS, tmp_path, json.dumps(CASES), env=ENVIRONMENT)
    printed = {name: (tmp_path / f"{name}.out").read_text().strip().splitlines() for name in CASES}
    errors = {name: (tmp_path / f"{name}.err").read_text() for name in CASES}
    status = {name: int((tmp_path / f"{name}.status").read_text()) for name in CASES}
    loud = status.pop("loud")
    assert not any(status.values()), errors
    platforms, loaded, engines, sklearn, servers = printed["cpu"][-5:]
    assert platforms.endswith(" cpu") and "'cpu')" in platforms
    assert "rollout.cpu" not in loaded and "vllm_server" not in loaded  # only on demand
    assert engines == "['cpu', 'cuda', 'npu']"
    assert sklearn == f"{find_spec('sklearn') is not None} False"  # seconds in every process of a run
    assert servers == "CpuReplica CpuServerAdapter"
    plain, ours = printed["plain"], printed["ours"]
    assert plain[0] == ours[0] and plain[2] == ours[2]
    assert "platform_cpu" not in ours[1] and "plugin" in ours[1]
    assert loud != 0
    assert "unknown CPPO_LAB_VERL_DEVICE (leave it unset for verl's own choice) 'gpu'" in errors["loud"]


def test_the_table_has_every_method_that_we_override() -> None:
    from cppo_lab.cores.verl import rewards, trainer, worker
    from cppo_lab.cores.verl.rollout import agent_loop, cpu

    modules = (trainer, worker, rewards, agent_loop, cpu)
    values = [(module.__name__, value) for module in modules for value in vars(module).values()]
    classes = [value for name, value in values if isinstance(value, type) and value.__module__ == name]
    assert {trainer.AsyncLabTrainer, worker.TrustRegionWorker, agent_loop._PieceClient} < {*classes}
    listed = {f"{point.module}.{point.attribute}" for point in check_api.API_CONTRACT}
    missing = []
    for ours in classes:
        for name, value in vars(ours).items():
            theirs = [
                base
                for base in ours.__mro__[1:]
                if base.__module__.startswith("verl.") and name in vars(base)
            ]
            if not theirs or not callable(value) or name.startswith("_abc") or name == "__module__":
                continue
            names = ["", ".__init__"] if name == "__init__" else [f".{name}"]
            places = {f"{base.__module__}.{base.__qualname__}{one}" for base in theirs for one in names}
            if not places & listed:
                missing.append(f"{ours.__name__}.{name}")
    assert not missing


# Types that our annotations and subclasses name, whose use is covered by other rows.
UNLISTED = {
    "verl.DataProto", "verl.models.mcore.util", "verl.plugin.platform.PlatformBase",
    "verl.single_controller.base.decorator.Dispatch", "verl.utils.metric.AggregationType",
    "verl.workers.config.HFModelConfig", "verl.workers.config.PolicyLossConfig", "verl.workers.config.RolloutConfig",
    "verl.utils.tensordict_utils", "verl.trainer.ppo.core_algos.POLICY_LOSS_REGISTRY",
}  # fmt: skip


def test_the_table_has_everything_that_we_import() -> None:
    listed = {f"{point.module}.{point.attribute}" for point in check_api.API_CONTRACT}
    imported = {
        f"{node.module}.{alias.name}"
        for path in Path(check_api.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "verl"
        for alias in node.names
    } - UNLISTED
    assert len(imported) > 20
    assert not {name for name in imported if not any(f"{row}.".startswith(f"{name}.") for row in listed)}
