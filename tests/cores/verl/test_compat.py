"""The table of what we use of verl holds for the installed version, and names exactly what breaks."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import verl.workers.rollout.base as rollout_base
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.workers.rollout.base import get_rollout_class
from verl.workers.rollout.replica import TokenOutput

from cppo_lab.cores.verl import compat, touch_points

pytestmark = pytest.mark.verl
ROOT = Path(__file__).parents[3]
# verl must be told its device before it is imported: a process per question.
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "PATH": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def test_the_installed_verl_is_as_expected() -> None:
    assert compat.version_problem() is None
    assert compat.check_touch_points() == []


def test_a_missing_attribute_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(PPOTrainer, "_balance_batch")
    (problem,) = compat.check_touch_points()
    assert problem.startswith(
        "verl.trainer.ppo.v1.trainer_base.PPOTrainer._balance_batch (overridden) is missing"
    )


def test_a_changed_signature_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PPOTrainer, "_update_actor", lambda self, batch, metrics, step: None)
    (problem,) = compat.check_touch_points()
    assert "PPOTrainer._update_actor (overridden) has changed" in problem
    assert "['self', 'batch', 'metrics', 'step']" in problem


def test_changed_fields_and_registries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {name: field for name, field in TokenOutput.model_fields.items() if name != "extra_fields"}
    monkeypatch.setattr(TokenOutput, "__pydantic_fields__", fields)
    monkeypatch.setattr(rollout_base, "_ROLLOUT_REGISTRY", {})
    problems = compat.check_touch_points()
    assert [problem.split(" ")[0].split(".")[-1] for problem in problems] == [
        "TokenOutput",
        "_ROLLOUT_REGISTRY",
    ]


def test_a_missing_module_is_named() -> None:
    gone = touch_points.TouchPoint("verl.no_such_module", "thing", touch_points.CALL, ())
    (problem,) = compat.check_touch_points((gone,))
    assert problem == "verl.no_such_module.thing (called) is missing: No module named 'verl.no_such_module'"


def test_vllms_server_is_checked_in_its_source() -> None:
    (point,) = (one for one in touch_points.TOUCH_POINTS if one.attribute == "vLLMHttpServer.run_server")
    changed = touch_points.TouchPoint(point.module, point.attribute, point.kind, ("self", "arguments"))
    missing = touch_points.TouchPoint(point.module, "vLLMHttpServer.stream", point.kind, ("self",))
    first, second = compat.check_touch_points((changed, missing))
    assert (
        "run_server (overridden) has changed: expected ['self', 'arguments'], found ['self', 'args']" in first
    )
    assert "no stream in" in second


@pytest.mark.parametrize(
    ("installed", "supported"), [("0.9.1", True), ("0.9.1.post1", True), ("0.9.0", False), ("0.10.0", False)]
)
def test_the_range_of_versions(monkeypatch: pytest.MonkeyPatch, installed: str, supported: bool) -> None:
    monkeypatch.setattr(compat, "version", lambda name: installed)
    problem = compat.version_problem()
    assert (problem is None) == supported
    assert supported or (problem is not None and installed in problem and "pip install" in problem)


def test_an_adapter_can_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_base, "_ROLLOUT_REGISTRY", {})
    compat.register_rollout_adapter("some", "verl.workers.rollout.base.BaseRollout")
    assert get_rollout_class("some") is rollout_base.BaseRollout


def in_a_process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


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


def test_the_plugin_chooses_the_cpu_when_asked() -> None:
    code = (
        ASK + "print(RolloutReplicaRegistry.get('cppo_cpu').__name__, get_rollout_class('cppo_cpu').__name__)"
    )
    done = in_a_process(code, CPPO_LAB_VERL_DEVICE="cpu", **PLUGIN)
    assert done.returncode == 0, done.stderr[-2000:]
    platforms, loaded, engines, servers = done.stdout.strip().splitlines()[-4:]
    assert platforms.endswith(" cpu") and "'cpu')" in platforms
    assert not [part for part in ("cpu_server", "vllm_server", "decode") if part in loaded]  # only on demand
    assert engines == "['cpu', 'cuda', 'npu']"
    assert servers == "CpuReplica CpuServerAdapter"


def test_without_being_asked_the_device_is_verls_own_choice() -> None:
    plain, ours = (in_a_process(ASK, **environment) for environment in ({}, PLUGIN))
    assert plain.returncode == ours.returncode == 0, ours.stderr[-2000:]
    plain_lines, our_lines = plain.stdout.strip().splitlines(), ours.stdout.strip().splitlines()
    assert plain_lines[0] == our_lines[0] and plain_lines[2] == our_lines[2]
    assert "platform_cpu" not in our_lines[1] and "plugin" in our_lines[1]


def test_the_plugin_is_loud() -> None:
    done = in_a_process("import verl", CPPO_LAB_VERL_DEVICE="gpu", **PLUGIN)
    assert done.returncode != 0
    assert "unknown CPPO_LAB_VERL_DEVICE (leave it unset for verl's own choice) 'gpu'" in done.stderr


def test_the_table_has_every_method_that_we_override() -> None:
    from cppo_lab.cores.verl.replay import LabReplayBuffer
    from cppo_lab.cores.verl.rollout.agent_loop import TopKAgentLoop, TopKAgentLoopOutput
    from cppo_lab.cores.verl.rollout.cpu_replica import CpuReplica, CpuServerAdapter
    from cppo_lab.cores.verl.rollout.dispatch import MarkedAgentLoopManager
    from cppo_lab.cores.verl.task_reward import TaskRewardManager
    from cppo_lab.cores.verl.trainer import LabTrainer
    from cppo_lab.cores.verl.worker import TrustRegionWorker

    classes = [
        LabTrainer, TrustRegionWorker, LabReplayBuffer, TaskRewardManager, CpuReplica, CpuServerAdapter,
        TopKAgentLoop, TopKAgentLoopOutput, MarkedAgentLoopManager,
    ]  # fmt: skip
    listed = {f"{point.module}.{point.attribute}" for point in touch_points.TOUCH_POINTS}
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
    listed = {f"{point.module}.{point.attribute}" for point in touch_points.TOUCH_POINTS}
    imported = {
        f"{node.module}.{alias.name}"
        for path in Path(compat.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "verl"
        for alias in node.names
    } - UNLISTED
    assert len(imported) > 20
    assert not {name for name in imported if not any(f"{row}.".startswith(f"{name}.") for row in listed)}
