"""What ``conftest.py`` and its plugins do: leaks, what the machine must have, tiers, seeds, and the summary."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests import conftest, summary, tiers
from tests.conftest import KINDS, REQUIRE, children, no_leftovers, require, required

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 120.0


def test_leak_check_finds_a_child_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in children()
    finally:
        child.communicate(b"\n")
    assert child.pid not in children()


def test_leak_check_looks_again_where_a_thread_ends_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    glob, ended = Path.glob, [Path("/proc/self/task/0/children")]
    monkeypatch.setattr(Path, "glob", lambda self, pattern: [*glob(self, pattern), *(ended.pop() for _ in ended[:])])
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in children()
        child.communicate(b"\n")
    assert not ended


def test_leak_check_finds_a_thread_that_does_not_end() -> None:
    check = no_leftovers.__wrapped__()  # type: ignore[attr-defined]
    next(check)
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, name="left-over")
    thread.start()
    try:
        with pytest.raises(AssertionError, match="left-over"):
            next(check)
    finally:
        ended.set()
        thread.join()


def test_leak_check_accepts_a_clean_test(no_leftovers: None) -> None:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


@pytest.fixture
def nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything that tests can need be absent."""
    monkeypatch.setattr(conftest, "KINDS", dict.fromkeys(KINDS, lambda: "it is not here"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_absent_skips_and_fails_where_it_is_required(
    monkeypatch: pytest.MonkeyPatch, nothing_here: None, kind: str
) -> None:
    for words in ("", ",".join(other for other in KINDS if other != kind)):
        monkeypatch.setenv(REQUIRE, words)
        with pytest.raises(pytest.skip.Exception, match=kind):
            require(kind)
    for words in (kind, f" {kind} ,", ",".join(KINDS)):
        monkeypatch.setenv(REQUIRE, words)
        with pytest.raises(pytest.fail.Exception, match=kind):
            require(kind)


def test_what_is_there_is_neither_skipped_nor_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "KINDS", dict.fromkeys(KINDS, str))
    monkeypatch.setenv(REQUIRE, ",".join(KINDS))
    for kind in KINDS:
        require(kind)


def test_each_kind_is_found_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(conftest, "DATA", tmp_path / "none")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("tests.docker_host.why_no_docker", lambda: "no engine")
    assert [kind for kind, why in KINDS.items() if not why()] == ["extras"]


@pytest.mark.parametrize("words", ["jva", "java,,chrome", "java;data"])
def test_words_that_nobody_knows_are_refused(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.setenv(REQUIRE, words)
    with pytest.raises(pytest.UsageError, match=REQUIRE):
        required()


def run_pytest(folder: Path, require: str = "", *words: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder under this conftest."""
    plugins = [f"-p{name}" for name in ("tests.tiers", "tests.summary", "tests.conftest", "no:cacheprovider")]
    command = [sys.executable, "-m", "pytest", *plugins, "-rfE", *words, "."]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), REQUIRE: require, tiers.SEED: "7"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)


def test_a_run_fails_for_want_of_what_it_requires(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_a.py").write_text("import pytest\npytest.importorskip('no_such_package')\n")
    (tmp_path / "test_b.py").write_text(
        "import pytest\nfrom tests.conftest import lacks\n"
        "def test_extra():\n    pytest.importorskip('no_such_package', reason='it is not installed')\n"
        "def test_java():\n    lacks('java', 'no compiler')\n"
        "def test_another_reason():\n    pytest.skip('not today')\n"
    )
    done = run_pytest(tmp_path, "")
    assert done.returncode == 0 and "4 skipped" in done.stdout and "1 java: no compiler" in done.stdout
    done = run_pytest(tmp_path, "java")
    assert done.returncode == 1 and "1 failed, 3 skipped" in done.stdout
    done = run_pytest(tmp_path, "extras")
    # A file that cannot be collected ends a run before its tests.
    assert done.returncode == 2 and "1 error" in done.stdout and "no_such_package" in done.stdout
    (tmp_path / "test_a.py").unlink()
    done = run_pytest(tmp_path, "extras")
    assert done.returncode == 1 and "1 failed, 2 skipped" in done.stdout and "it is not installed" in done.stdout
    assert run_pytest(tmp_path, "jva").returncode == pytest.ExitCode.USAGE_ERROR


def test_a_tier_plays_what_is_marked_for_it_and_what_is_below(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = tier(name): from which on\n")
    (tmp_path / "test_a.py").write_text(
        "import pytest\n"
        "def test_one(): pass\n"
        "@pytest.mark.tier('gate')\ndef test_two(): pass\n"
        "@pytest.mark.tier('all')\ndef test_three(): pass\n"
    )
    for tier, said in (("fast", "1 passed, 2 deselected"), ("gate", "2 passed, 1 deselected"), ("all", "3 passed")):
        done = run_pytest(tmp_path, "", "--tier", tier)
        assert said in done.stdout and f"tier {tier}, seed 7" in done.stdout, done.stdout


def test_a_run_that_is_longer_than_its_budget_fails_only_where_that_is_asked(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_a.py").write_text("def test_one(): pass\n")
    assert run_pytest(tmp_path, "", "--budget", "0").returncode == 1
    done = run_pytest(tmp_path, "", "--budget", "600")
    assert done.returncode == 0 and "seconds of each folder" in done.stdout


def test_each_folder_of_tests_has_a_budget_and_what_the_tiers_name_is_there() -> None:
    files = [path for top in ("tests", "benchmarks") for path in (ROOT / top).rglob("test_*.py")]
    assert {summary.folder_of(str(path.relative_to(ROOT))) for path in files} == set(summary.budgets())
    drawn = [name for names, _ in tiers.DRAWN for name in names]
    for name in (*tiers.NOT_FAST, *tiers.ON_HADOOP, *tiers.LANES, *drawn):
        path, _, test = name.partition("::")
        assert (ROOT / path).exists() and test in ((ROOT / path).read_text() if test else ""), name


def test_a_sample_is_the_seeds_and_a_seed_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tiers.SEED, "12")
    assert tiers.seed_of_run() == 12
    samples = []
    for seed in range(50):
        monkeypatch.setenv(tiers.SEED, str(seed))
        samples.append(tuple(tiers.sample(range(9), 3)))
    assert {case for sample in samples for case in sample} == set(range(9))
    assert all(sample == tuple(sorted(sample)) for sample in samples) and tiers.sample("ab", 3) == ["a", "b"]
    monkeypatch.setenv(tiers.SEED, "x")
    with pytest.raises(pytest.UsageError, match=tiers.SEED):
        tiers.seed_of_run()
