"""Which tests run when. `make test` and plain `pytest`: fast. `make test-all`: fast and full. `make soak`: soak.

Naming files or folders on the command line runs whatever is in them. What is not listed is fast.
"""

from pathlib import Path
from typing import Final

FAST: Final = "fast"  # on any machine, with nothing but Python; docs/tests.md says how long
FULL: Final = "full"  # needs a server, an apt package, root, or minutes
SOAK: Final = "soak"  # finds rare things by volume or chance; not in CI

# Path below tests/, or path::test -> tier and why. The longest that fits counts.
TIERS: Final[dict[str, tuple[str, str]]] = {
    "analysis/test_histories_of_server.py": (FULL, "an MLflow server"),
    "benchmarks/test_gpu_kit.py": (FULL, "makes a bare environment, and runs the whole kit on the CPU"),
    "browser": (FULL, "Chromium"),
    "cores/verl": (FULL, "Ray, and verl's imports take ten seconds a process"),
    "cores/verl/test_async_runs.py": (SOAK, "two trainings with Ray: minutes of one core"),
    "cores/verl/vllm/test_vllm_async.py": (SOAK, "the same with vLLM: six minutes"),
    "data/test_verl.py": (FULL, "verl's imports take ten seconds a process"),
    "dev/test_gpu_lock.py::test_the_locks_are_solutions": (
        SOAK,
        "asks the package index, whose answer changes",
    ),
    "cores/test_loop.py::test_no_run_of_an_embedded_core_loads_the_compiler_or_needs_triton": (
        FULL,
        "a process that loads torch and trains twice",
    ),
    "cores/test_core_records.py::test_a_core_of_another_package_conforms": (FULL, "attempts in processes"),
    "cores/test_core_conformance.py": (FULL, "processes that load torch or MLflow"),
    "launch/test_batches.py": (FULL, "groups of runs, killed and continued in processes"),
    "launch/test_conformance.py": (FULL, "twenty processes"),
    "launch/test_launch.py": (
        FULL,
        "launches, kills and resumes in every way; test_main_job.py has one of each",
    ),
    "launch/slurm": (FULL, "Slurm and root"),
    "launch/slurm/test_containers.py::test_a_run_in_a_container_goes_on_after_whatever_slurm_does_to_it[pyxis]": (
        SOAK,
        "a minute; with Apptainer it is in the full tier",
    ),
    "launch/slurm/test_several_nodes.py": (FAST, "needs no Slurm"),
    "launch/slurm/test_two_accounts.py::test_both_launch_a_new_folder_at_once": (SOAK, "two minutes"),
    "launch/slurm/test_two_accounts.py::test_one_submits_and_the_other_sees_it": (SOAK, "two minutes"),
    "maths/test_from_logits.py::test_the_kernels_compile_for_an_h100": (
        FULL,
        "Triton's compiler: ten seconds",
    ),
    "old_store": (FULL, "thirty commands, of which seven train: 40 s"),
    "reports/test_exact_view.py": (FULL, "trains sixteen short runs"),
    "reports/test_latex.py": (FULL, "LaTeX"),
    "rules/test_foreign_rules.py::test_an_entry_point_trains_on_the_embedded_core": (
        FULL,
        "a process that trains two runs, and their report",
    ),
    "search/test_kill.py": (FULL, "searches whose workers are killed"),
    "search/test_worker.py": (FULL, "searches that train"),
    "servers": (FULL, "an MLflow server, PostgreSQL"),
    "slurm": (FULL, "Slurm and root"),
    "slurm/test_ray_nodes.py::test_a_preflight_starts_and_resumes_on_two_machines": (
        SOAK,
        "two starts of Ray: ten minutes of two cores; on one machine it is in the full tier",
    ),
    "slurm/test_ray_nodes.py::test_machines_join_from_containers[apptainer]": (SOAK, "a start of Ray"),
    "slurm/test_ray_nodes.py::test_two_jobs_share_two_machines_and_each_ends_without_the_other": (
        SOAK,
        "two starts of Ray",
    ),
    "slurm/test_without_slurm.py": (FAST, "needs no Slurm"),
    "sweep/test_authors_recipe.py": (FULL, "plans nearly every sweep under two recipes, for two cores"),
    "cli/test_ui.py::test_it_serves_until_it_is_terminated_and_leaves_nothing": (FULL, "an MLflow server"),
    "testing/test_across.py::test_verls_own_losses_are_ours_under_the_recorded_settings": (
        FULL,
        "verl's imports take ten seconds",
    ),
    "test_working_folder.py": (FULL, "starts every command and every kind of job in new processes"),
    "test_reaper.py": (FULL, "three sessions of pytest"),
    "test_wheel.py": (FULL, "builds and installs the package"),
}
# What --tier takes -> the tiers that run.
CHOICES: Final[dict[str, frozenset[str]]] = {
    "fast": frozenset({FAST}),
    "rest": frozenset({FULL}),
    "all": frozenset({FAST, FULL}),
    "soak": frozenset({SOAK}),
}


def tier(path: Path, test: str = "") -> str:
    """The tier of a file by its path below tests/, or of a test in it by its name, without parameters or with them."""
    names = [f"{path.as_posix()}::{name}" for name in (test, test.partition("[")[0])]
    for name in (*names, path.as_posix(), *(folder.as_posix() for folder in path.parents)):
        if found := TIERS.get(name):
            return found[0]
    return FAST


def tiers_in(path: Path) -> set[str]:
    """The tiers of the tests of a file, by its path below tests/."""
    named = {reason[0] for name, reason in TIERS.items() if name.startswith(f"{path.as_posix()}::")}
    return {tier(path), *named}
