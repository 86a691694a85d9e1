"""The benchmarks of tiers: hosts with limited links, the steps of a trace, what is measured, and the pictures."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tiers import stages
from benchmarks.tiers.drawing import draw, draw_replay
from benchmarks.tiers.hosts import Hosts, address, inside
from benchmarks.tiers.jobs import Case, Ran
from benchmarks.tiers.replay import Step, steps_of, with_throughput
from eps.errors import ConfigError
from tests.conftest import lacks

SIZE_BYTES, MBIT = 1_000_000, 40


def test_the_link_of_a_host_has_its_rate() -> None:
    try:
        hosts = Hosts(2)
    except ConfigError as error:
        lacks("root", str(error))
    with hosts:
        hosts.limit([MBIT, 0.0])
        with inside(hosts.namespaces[1]):
            listening = socket.create_server((address(2), 0))
        with inside(hosts.namespaces[0]):
            sender = socket.create_connection(listening.getsockname())
        receiver, peer = listening.accept()
        began_s = time.monotonic()
        thread = threading.Thread(target=sender.sendall, args=(bytes(SIZE_BYTES),))
        thread.start()
        left = SIZE_BYTES
        while left:
            left -= len(receiver.recv(1 << 16))
        lasted_s = time.monotonic() - began_s
        thread.join()
        for sock in (sender, receiver, listening):
            sock.close()
        assert peer[0] == address(1)
        # Less than the burst, which passes at once.
        assert lasted_s > 0.9 * 8 * SIZE_BYTES / MBIT / 1e6
        (sent, _), (_, received) = hosts.sent_bytes()
        assert min(sent, received) > SIZE_BYTES


def test_a_trace_becomes_numbers_of_hosts(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    lines = ["1000,add,a", "1000,add,b", "3000,add,c", "5000,add,d", "9000,remove,a", "9000,remove,b", "90000,add,e"]
    trace.write_text("\n".join(lines), encoding="utf-8")
    assert steps_of(trace, 2, 2.0, 10.0) == [Step(0.0, 1), Step(1.0, 2), Step(4.0, 1)]
    trace.write_text("1000,lose,a", encoding="utf-8")
    with pytest.raises(ValueError, match="'lose'"):
        steps_of(trace, 2, 2.0, 10.0)


def ran(case: str, iteration_s: float, stage: int = 1) -> Ran:
    times = [iteration_s * (10.0 if clock < 7 else 1.0) for clock in range(12)]
    completed = [sum(times[: clock + 1]) for clock in range(12)]
    tiers: dict[str, Any] = {"stage": stage, "largest_lag": 0}
    return Ran(Case(case, 1, 3), tiers, completed, 0.5, 0.0, [(0, 0)] * 4)


def test_the_last_iterations_count() -> None:
    assert ran("1:1 stage 2", 0.5).steady_s == pytest.approx([0.5] * 5)


def test_the_controller_is_compared_with_the_best_stage_of_each_repeat() -> None:
    repeats = []
    for slower in (1.0, 1.2):
        times = {"1:1 stage 1": 1.0, "1:1 stage 2": 1.1, "1:1 stage 3": 1.4, "1:1 auto": slower, stages.ALL: 0.9}
        repeats.append({name: ran(name, value) for name, value in times.items()})
    bars = {bar.name: bar for bar in stages.train_bars(repeats, 4, [1, 3])}
    choice = bars["the controller's choice at 1:1 / the best stage"]
    assert choice.measured == pytest.approx(1.1) and choice.noise == pytest.approx(0.2)
    assert bars["Fig. 14: stage 3 / stage 2 at 1:1"].passed


def test_results_are_drawn(tmp_path: Path) -> None:
    names = [case.name for case in stages.cases_of(stages.PARTS, 32, stages.RATIOS)]
    assert len(names) == len(set(names)) == 28
    cases = {name: {"iteration_s": {"median": 1.0, "min": 0.9, "max": 1.1}, "runs": [{"stage": 2}]} for name in names}
    changes = {"joined_clock": 3, "left_clock": 5, "joining": 1.0, "evicting": 1.1, "usual_s": 1.0}
    elastic = {**changes, "usual_joined_s": 0.5, "iteration_s": [2.0, 1.0, 1.0, 0.5, 0.5, 1.0, 0.1]}
    network = {"hosts": 16, "mbit": 75.0}
    found = {"cases": cases, "network": network, "elasticity": [elastic], "kills": [{"pause_s": 0.4}]}
    draw(found, tmp_path / "stages.svg")
    drawn = (tmp_path / "stages.svg").read_text(encoding="utf-8")
    assert "63:1 stage 3" in drawn and "the paper: over 1.85" in drawn and "after 0.40 s" in drawn

    samples = [{"s": s, "wanted": 3, "reliable": 1, "transient": 2, "stage": 2} for s in (0.0, 1.0, 2.0)]
    with_throughput(samples, [0.1, 0.9, 1.9])
    assert [sample["per_s"] for sample in samples] == [1.0, 1.5, 0.5]
    summary = {"clocks": 3, "evicted": 1, "failed": 1, "rolled_back": 0}
    events = [{"s": 1.0, "kind": "fail", "hosts": 1}]
    replayed = {"samples": samples, "events": events, "summary": summary, "trace": "p3", "speed": 120.0}
    draw_replay(replayed, tmp_path / "replay.svg")
    assert "failed 1;" in (tmp_path / "replay.svg").read_text(encoding="utf-8")
