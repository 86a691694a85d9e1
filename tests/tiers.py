"""What is played when: ``./test.sh fast``, ``./test.sh`` (the gate) and ``./test.sh all``.

- ``fast``: what computes in one process.
- ``gate``: every mechanism once with real processes, and a sample of random jobs that is another one for each commit.
- ``all``: everything: each victim in each phase, every fault of a real Hadoop, Kerberos, thousands of random jobs.

A test that is only in ``all`` has the mark ``tier("all")``.  Of tests that prove the same in other circumstances the
gate draws some (:data:`DRAWN`).  A test that plays more cases in ``all`` asks :func:`of_tier`, :func:`seeds` or
:func:`rotating`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

Case = TypeVar("Case")

TIERS = ("fast", "gate", "all")
#: The number from which random jobs, histories and samples of this run are drawn.
SEED = "EPS_SEED"
#: What is not in ``fast``: tests that start processes, or wait for them.
NOT_FAST = (
    "tests/integration/", "tests/surface/", "tests/yarn/", "tests/devcluster/", "tests/master/",
    "tests/cli/test_cli_end_to_end.py",
    *(f"tests/cluster/test_{name}.py" for name in (
        "hosted_masters", "fork_server", "supervisor_processes", "yarn_bridge", "yarn_shipping",
    )),
    *(f"tests/hscheduler/test_{name}.py" for name in ("fmin", "killed_scheduler", "service", "yarn_plugin_build")),
)  # fmt: skip
#: What the gate always plays on a real Hadoop: the contracts, one job with changes, one with faults.
ON_HADOOP = (
    "tests/yarn/test_yarn_contract.py",
    "tests/yarn/test_client_contract.py",
    "tests/yarn/test_hdfs_contract.py",
    "tests/yarn/test_jobs_on_yarn.py::test_a9a_on_yarn_with_adds_and_removes_is_the_local_model",
    "tests/yarn/test_job_faults_on_yarn.py::test_a_master_killed_in_phases_of_a_plan_comes_back",
)
#: Tests of whole jobs that prove the same with other faults, sizes and rules -> how many of them the gate draws by its
#: seed.  The tier ``all`` plays every one.
DRAWN: tuple[tuple[tuple[str, ...], int], ...] = (
    (("tests/yarn/",), 1),
    (
        (
            "tests/integration/test_yarn_in_trouble.py",
            "tests/integration/test_hdfs_safe_mode.py",
            "tests/integration/test_docker_engine_gone.py",
        ),
        2,
    ),
    (("tests/integration/test_resume.py",), 4),
    (("tests/integration/test_service.py",), 2),
    (("tests/integration/test_exactness.py::test_a9a", "tests/integration/test_exactness.py::test_dnn"), 1),
    (("tests/integration/test_exactness.py::test_stale",), 1),
    (
        (
            "tests/integration/test_exactness.py::test_topics_with_ten",
            "tests/integration/test_exactness.py::test_ratings_with_ten",
            "tests/integration/test_exactness.py::test_small_batches_with_ten",
            "tests/integration/test_exactness.py::test_sparse_text_with_ten",
        ),
        1,
    ),
    (("tests/hscheduler/test_killed_scheduler.py::test_a_scheduler_may_crash_at_every_step",), 1),
    (("tests/integration/test_kill_in_plans.py::test_a_kill_before_moved_partitions",), 2),
    (("tests/integration/test_kill_in_plans.py::test_a_kill_in_the_same_phase",), 4),
    (("tests/integration/test_data_plane.py::test_without_exact_bits",), 2),
    (
        (
            "tests/integration/test_stopping_rules.py::test_a_trial_that_was_paused",
            "tests/integration/test_stopping_rules.py::test_trials_of_hyperopt",
        ),
        1,
    ),
    (
        (
            "tests/integration/test_sweep_of_containers.py::test_trials_of_one_container",
            "tests/integration/test_sweep_of_containers.py::test_a_trial_of_one_container",
        ),
        1,
    ),
    (("tests/integration/test_callable_sweep.py::test_a_sweep_of_calls_that_was_killed",), 1),
    (("tests/integration/test_evictions.py::test_the_scheduler_replaces",), 1),
    (
        (
            "tests/integration/test_chaos.py::test_unreachable_members",
            "tests/integration/test_chaos.py::test_a_job_killed_as_a_whole",
            "tests/integration/test_chaos.py::test_jobs_with_faults",
            "tests/integration/test_chaos.py::test_an_interrupt_ends",
            "tests/integration/test_data_plane.py::test_every_transport",
            "tests/integration/test_attacker.py::test_a_process_of_another_user",
            "tests/integration/test_attacker.py::test_an_attack_that_is_interrupted",
        ),
        1,
    ),
    (("tests/integration/test_sweep_is_never_lost.py",), 1),
    (
        (
            "tests/integration/test_tiers.py::test_containers_are_added",
            "tests/integration/test_tiers.py::test_a_container_that_gets_sigterm",
            "tests/integration/test_tiers.py::test_a_second_sigterm",
            "tests/integration/test_tiers.py::test_the_only_reliable",
            "tests/integration/test_tiers.py::test_all_transient",
            "tests/integration/test_tiers.py::test_partitions_on_transient",
            "tests/integration/test_tiers.py::test_a_stopped_job_resumes",
        ),
        3,
    ),
    (
        (
            "tests/integration/test_page_in_browser.py::test_a_sweep_of_real_jobs",
            "tests/integration/test_page_in_browser.py::test_a_thousand_trials",
        ),
        1,
    ),
    (
        (
            "tests/integration/test_trials.py",
            "tests/integration/test_python_sweep.py::test_the_example",
            "tests/integration/test_trials_failures.py::test_objectives_in_processes",
            "tests/integration/test_trials_failures.py::test_interrupting",
        ),
        2,
    ),
)
#: How many random jobs of tests/sim.
SEEDS = {"fast": 5, "gate": 48, "all": 3000}
#: Times the cases of a loop in the gate.
LOOPS = {"fast": 1, "gate": 1, "all": 20}
#: How many cases Hypothesis draws for a property.
EXAMPLES = {"fast": 20, "gate": 60, "all": 3000}
MEMBERS = {"fast": 50, "gate": 200, "all": 1000}
ROOT = Path(__file__).resolve().parents[1]
_cases_of_loop = 1


def tier_of(config: pytest.Config) -> str:
    return str(config.getoption("--tier"))


def of_tier(config: pytest.Config, gate: Case, everything: Case) -> Case:
    """Return the second only in the tier ``all``."""
    return everything if tier_of(config) == "all" else gate


def seed_of_run() -> int:
    """Return the run's number: EPS_SEED, or one that the commit names."""
    told = os.environ.get(SEED, "")
    if told:
        if not told.isdigit():
            raise pytest.UsageError(f"{SEED} is {told!r}, but must be a whole number from 0")
        return int(told)
    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(found[:5], 16)


def seeds(config: pytest.Config, share: int = 1) -> range:
    """Return the seeds of random jobs, or a share of them."""
    return range(first := seed_of_run(), first + max(1, config.getoption("--seeds") // share))


def rotating(count: int) -> range:
    """Return the seeds of a loop over random cases: others for each commit, and many more in ``all``."""
    return range(first := seed_of_run(), first + count * _cases_of_loop)


def until_met(most: int = 1000) -> range:
    """Return the seeds of jobs that are played until they have met all that may happen."""
    return range(first := seed_of_run(), first + most)


def sample(cases: Sequence[Case], count: int) -> list[Case]:
    """Return some cases in their order, others for each commit."""
    chosen = Random(seed_of_run()).sample(range(len(cases)), min(count, len(cases)))
    return [cases[place] for place in sorted(chosen)]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=TIERS, default="gate", help="what is played; see tests/tiers.py")
    parser.addoption("--seeds", type=int, default=None, help="how many random jobs tests/sim plays")
    parser.addoption("--members", type=int, default=None, help="how many members a large job has")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Set what the tier says, and let processes of this run have the same seed."""
    global _cases_of_loop
    tier = tier_of(config)
    _cases_of_loop = LOOPS[tier]
    for name, numbers in (("seeds", SEEDS), ("members", MEMBERS)):
        if config.getoption(f"--{name}") is None:
            setattr(config.option, name, numbers[tier])
    os.environ[SEED] = str(seed_of_run())
    from hypothesis import settings

    # On a busy machine a case takes as long as it takes.
    settings.register_profile(tier, max_examples=EXAMPLES[tier], deadline=None, database=None)
    settings.load_profile(tier)
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = os.environ[SEED]


def pytest_report_header(config: pytest.Config) -> str:
    return f"tier {tier_of(config)}, seed {seed_of_run()} (the same again: {SEED}={seed_of_run()})"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out of ``fast`` what is not fast before it is imported."""
    there = collection_path.relative_to(ROOT).as_posix() if collection_path.is_relative_to(ROOT) else ""
    return True if tier_of(config) == "fast" and f"{there}/".startswith(NOT_FAST) else None


def is_played(item: pytest.Item, tier: str) -> bool:
    """Return whether a test is in a tier, or one of those from which the gate draws."""
    mark = item.get_closest_marker("tier")
    return mark is None or TIERS.index(mark.args[0]) <= TIERS.index(tier)


def without_most(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests without those of :data:`DRAWN` that the seed does not draw."""
    left_out: set[pytest.Item] = set()
    for prefixes, count in DRAWN:
        group = [item for item in items if item.nodeid.startswith(prefixes) and not item.nodeid.startswith(ON_HADOOP)]
        left_out.update(set(group).difference(sample(group, count)))
    return [item for item in items if item not in left_out]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the tier does not play; begin with what takes longest where tests run side by side."""
    tier = tier_of(config)
    played = [item for item in items if is_played(item, tier)]
    if tier == "gate":
        played = without_most(played)
    chosen = set(played)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = played
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: [not item.nodeid.startswith(folder) for folder in LANES])


#: Where the tests of whole jobs are -> which run one after the other: sweeps of small jobs, other jobs here, and those
#: on a Hadoop.
_SWEEPS = (
    "callable_sweep", "page_in_browser", "python_sweep", "service", "stopping_rules", "sweep", "sweep_failures",
    "sweep_in_terminal", "sweep_is_never_lost", "sweep_metrics", "sweep_of_containers", "trials", "trials_failures",
)  # fmt: skip
LANES = {
    **{f"tests/integration/test_{name}.py": "sweeps" for name in _SWEEPS},
    "tests/surface/": "sweeps",
    "tests/integration/": "jobs",
    "tests/yarn/": "hadoop",
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let the tests of each lane run one after the other on one worker; others file by file beside them.

    A job's processes use every core for moments only: a small one, and what computes in one process, fit in between.
    Those on a real Hadoop wait for its daemons most of the time.
    """
    from xdist.scheduler import LoadScopeScheduling

    class OneJobAtATime(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return next((lane for folder, lane in LANES.items() if file.startswith(folder)), file)

    # In the order of pytest_collection_modifyitems.
    config.option.loadscopereorder = False
    return OneJobAtATime(config, log)
