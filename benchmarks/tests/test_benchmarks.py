"""What the benchmarks say: bars near the noise, pictures that cannot be drawn, and an end by SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_common, peers, peers_setup, picture, recovery, resize, scale, soak, van
from benchmarks.bench_common import Bar
from benchmarks.paper import figures
from eps.system.waits import wait_for

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 60.0


@pytest.mark.parametrize(
    ("measured", "noise", "verdict"),
    [
        (0.992, 0.0187, "within noise"),
        (1.015, 0.0187, "within noise"),
        (1.03, 0.0187, "FAIL"),
        (0.992, 0.006, "pass"),
        (1.012, 0.006, "FAIL"),
        (None, 0.0187, "FAIL"),
    ],
)
def test_a_bar_that_is_nearer_than_the_noise_is_not_passed(measured: float | None, noise: float, verdict: str) -> None:
    bar = Bar("token / no token", measured, 1.01, at_least=False, noise=noise)
    assert bar.verdict == verdict and bar.line().startswith(f"{verdict}  token")
    assert json.loads(json.dumps(bar.as_dict()))["passed"] is {"pass": True, "FAIL": False}.get(verdict)


def test_what_the_token_costs_is_judged_by_what_two_connections_without_one_differ_by() -> None:
    def spread(value: float) -> dict[str, Any]:
        return {"values": [value]}

    small = {name: {"median_us": spread(us)} for name, us in (("tcp", 20), ("tcp again", 22), ("tcp, token", 20.1))}
    pushes = {"open": spread(10), "open again": spread(10.01), "token": spread(10.2)}
    calls = {"open": spread(100), "open again": spread(100), "token": spread(90)}
    push, ping, call = van.authentication_bars(small, {"push_ms": pushes, "unary_call_us": calls})
    assert (push.verdict, ping.verdict, call.verdict) == ("FAIL", "within noise", "pass")


def test_two_copies_one_after_the_other_have_no_bar() -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "van.json").read_text(encoding="utf-8"))["large"]["40"]
    assert not any("ordinary, copied out" in bar.name for bar in van.large_bars(40, found))
    assert [entry["measured"] for entry in van.without_bars(40, found)] == [0.4019, 0.4145]


@pytest.mark.parametrize("benchmark", [van, resize, scale])
def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_is_measured(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_common, "can_draw", lambda: False)
    with pytest.raises(SystemExit) as ended:
        benchmark.main(["--quick", "--picture", str(tmp_path / "a.png")])
    assert ended.value.code == 2 and "pip install '.[benchmarks]'" in capsys.readouterr().err


def test_recovery_and_the_papers_figures_refuse_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_common, "can_draw", lambda: False)
    monkeypatch.setattr(figures, "can_draw", lambda: False)
    for main, words in ((recovery.main, ["--picture", str(tmp_path / "a.png")]), (figures.main, ["fig14"])):
        monkeypatch.setattr(sys, "argv", ["benchmark", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2 and "pip install '.[benchmarks]'" in capsys.readouterr().err


def test_peers_looks_for_what_it_draws_with_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(cache: Path) -> peers_setup.Environment:
        raise peers_setup.AbsentError("pip install numpy: no network")

    monkeypatch.setattr(peers_setup, "make_environment", absent)
    assert peers.main(["--quick", "--picture", str(tmp_path / "a.png")]) == 2
    assert "pictures need matplotlib: pip install numpy: no network" in capsys.readouterr().err


def test_what_has_no_bar_is_not_judged() -> None:
    found = [{"memory_bytes": 1 << 30, "proportional_bytes": size << 20, "threads": 9} for size in (40, 40, 40, 70)]
    values = soak.compare(found)
    assert soak.row("worker-1", "memory_bytes", values["memory_bytes"]).startswith("flat ")
    assert soak.row("worker-1", "threads", values["threads"]).endswith("(flat: at most 1.1 times, or 4 more)")
    assert soak.row("worker-1", "proportional_bytes", values["proportional_bytes"]).startswith("not judged ")
    # The text of --help has the same numbers.
    limits = (
        "memory 1.1 times or 8 MiB, descriptors 1.1 times or 8, threads 1.1 times or 4, shared segments 1.2 times or 6"
    )
    assert limits in " ".join((soak.__doc__ or "").split())
    assert soak.MOST_GROWTH == {"memory_bytes": 1.1, "descriptors": 1.1, "threads": 1.1, "segments": 1.2}
    assert soak.SLACK == {"memory_bytes": 8 << 20, "descriptors": 8, "threads": 4, "segments": 6}


@pytest.mark.parametrize("name", ["van", "hotspots"])
def test_a_benchmark_that_is_terminated_leaves_nothing(name: str, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    more = ["--case", "dense", "--cache", str(tmp_path / "cache")] if name == "hotspots" else []
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--quick", *more]
    pipe, environment = subprocess.PIPE, {**os.environ, "TMPDIR": str(scratch)}
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        wait_for(lambda: bool(list(scratch.glob(f"eps-{name}-*"))), TIMEOUT_S, "what it works in")
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130 and told.endswith("interrupted\n")
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(("measured", "quick", "code"), [(0.5, False, 1), (0.5, True, 0), (0.8, False, 0)])
def test_a_missed_promise_is_in_the_exit_code(measured: float, quick: bool, code: int) -> None:
    kept = Bar("kept", 1.0, 0.7, at_least=True)
    assert bench_common.exit_code([kept, Bar("speed", measured, 0.7, at_least=True)], quick) == code


def test_a_benchmark_that_is_interrupted_says_so_and_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        bench_common.run_to_the_end(main)
    assert ended.value.code == 130 and capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("benchmark", [recovery, resize])
def test_an_earlier_result_is_drawn_again(benchmark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = ROOT / "benchmarks" / "results" / f"{benchmark.__name__.rpartition('.')[2]}.json"
    with pytest.raises(SystemExit):
        benchmark.main(["--redraw", str(found)])
    assert "--redraw needs --picture" in capsys.readouterr().err
    pytest.importorskip("matplotlib", reason="the extra benchmarks is not installed")
    picture = tmp_path / "a.png"
    assert benchmark.main(["--redraw", str(found), "--picture", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_picture_of_the_readme_is_drawn_from_the_results() -> None:
    drawn = picture.svg(json.loads(picture.REPORT.read_text(encoding="utf-8")))
    assert picture.PICTURE.read_text(encoding="utf-8") == drawn, "run python benchmarks/picture.py"
