"""The controller's time for a change of a job with 4 reliable and 1,024 transient containers, over the pure core.

    python -m benchmarks.tiers.controller

Members are played: each order is answered at once.  The time is the CPU time of ``Job.step``.  ``decision`` is the
longest step: the one that decides, plans and orders the change.  ``whole`` is the sum of all steps from the request to
the release, with the reports of all members; it is spread over the time that the members need.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import deque
from typing import Any

from eps.core import events as e
from eps.core import messages as m
from eps.core.events import Event
from eps.core.job import Job
from eps.core.members import seat_of
from eps.core.reconfig import Change, Operation
from eps.core.tiers import StageRule
from eps.core.types import Address, CoreSettings, MemberId, Role, Tier


class PlayedJob:
    """A job whose members answer every order at once.

    Parameters
    ----------
    reliable, transient : int
        Containers.
    """

    def __init__(self, reliable: int, transient: int) -> None:
        hosts = reliable + transient
        settings = CoreSettings(num_splits=4 * hosts, num_partitions=transient // 2, iterations=10_000)
        tiers = {Tier.RELIABLE: reliable, Tier.TRANSIENT: transient}
        self.job = Job(settings, hosts, reliable, tiers=tiers, stage_rule=StageRule.RATIO)
        self.now_s = 0.0
        self.steps: list[float] = []
        self._events: deque[Event] = deque()
        self._seats: dict[MemberId, str] = {}
        self._take(self.job.start(0.0))
        self.run()

    def ask(self, event: Event) -> None:
        """Process an event and all that follows from it."""
        self._events.append(event)
        self.run()
        for _ in range(4):
            self.now_s += 1.0
            self._events.append(e.Tick())
            self.run()

    def run(self) -> None:
        """Process events until none is left."""
        while self._events:
            event = self._events.popleft()
            self.now_s += 1e-5
            begin = time.thread_time()
            commands = self.job.step(event, self.now_s)
            self.steps.append(time.thread_time() - begin)
            self._take(commands)

    def _take(self, commands: list[e.Command]) -> None:
        for command in commands:
            match command:
                case e.RequestContainer(container_id):
                    self._events += [e.ContainerGranted(container_id), e.ContainerLaunched(container_id, 1)]
                    self._events += [self._registered(seat_of(container_id, role)) for role in Role]
                case e.ReleaseContainer(container_id):
                    self._events.append(e.ContainerExited(container_id, "released", taken=False))
                case e.Name(seat, name):
                    self._seats[name] = seat
                case e.Send(to, order):
                    self._events += [e.ReportReceived(report) for report in self._answers(to, order)]
                    if isinstance(order, m.Shutdown) and to in self.job.members.by_name:
                        self._events.append(self._registered(self._seats[to]))

    def _registered(self, seat: str) -> Event:
        self._port = getattr(self, "_port", 0) + 1
        return e.MemberRegistered(seat, Address("host", self._port), 1)

    def _answers(self, name: MemberId, order: m.Order) -> list[m.Report]:
        match order:
            case m.UpdateMembership(plan_id, membership):
                found: list[m.Report] = [m.MembershipAcked(name, membership.version)]
                owned = membership.partitions.owned_by(name) if plan_id else ()
                return found + [m.PartitionPromoted(name, plan_id, p) for p in owned]
            case m.UpdateLists(plan_id):
                return [m.ListsUpdated(name, plan_id)]
            case m.SendPartitions(plan_id, targets):
                sent: list[m.Report] = [m.PartitionSent(name, plan_id, t.item, 8, "sum") for t in targets]
                return sent + [m.PartitionCaughtUp(t.target, plan_id, t.item, "sum") for t in targets]
            case m.SendSplits(plan_id, targets):
                return [m.SplitReceived(t.target, plan_id, t.item, 8, "sum") for t in targets]
            case m.LoadSplits(plan_id, splits):
                return [m.SplitReceived(name, plan_id, split, 0, "sum") for split in splits]
            case m.ReleasePlan(plan_id):
                return [m.PlanReleased(name, plan_id)]
            case m.TakeCut(cut_id, clock, _, backups):
                owned = self.job.membership.partitions.owned_by(name) if self.job.membership is not None else ()
                holders = {p: m.backup_of(p, name, backups).target for p in owned}
                return [m.CutStaged(name, cut_id, p, holder, 8, clock) for p, holder in holders.items()]
            case m.GrantHorizon():
                return self._results(name, order.horizon)
        return []

    def _results(self, name: MemberId, horizon: int) -> list[m.Report]:
        """Return what a worker measures up to the horizon, until the first cut is committed."""
        membership, progress = self.job.membership, self.job.progress
        if membership is None or name not in membership.workers or self.job.cuts.count:
            return []
        splits = membership.splits.active_on(name)
        clocks = range(progress.completed, horizon + 1)
        return [m.ClockReported(name, c, tuple(m.SplitResult(s, 1, 1.0) for s in splits)) for c in clocks]


def main() -> None:
    """Measure a change of the number, an eviction of half and of all transient containers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reliable", type=int, default=4)
    parser.add_argument("--transient", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", help="file for the JSON")
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(options.repeats):
        played = PlayedJob(options.reliable, options.transient)
        for what in ("join 32", "evict 1", "evict half", "evict all"):
            played.steps = []
            played.ask(_event(what, played.job))
            longest, whole = 1e3 * max(played.steps), 1e3 * sum(played.steps)
            found.setdefault(what, []).append((longest, whole))
            assert played.job.plans.is_idle, f"{what}: {played.job.plans.flight.plan}"
    changes: dict[str, Any] = {
        what: {
            "decision_ms": round(statistics.median(longest for longest, _ in times), 2),
            "whole_ms": round(statistics.median(whole for _, whole in times), 1),
        }
        for what, times in found.items()
    }
    result = {"reliable": options.reliable, "transient": options.transient, "changes": changes}
    text = json.dumps(result, indent=2)
    print(text)
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            file.write(text + "\n")


def _event(what: str, job: Job) -> Event:
    if what == "join 32":
        return e.ChangeRequested("join", Change(Operation.TIERS, 32, containers=((Tier.TRANSIENT, 32),)))
    here = [host.container for host in job.members.hosts.values() if host.tier is Tier.TRANSIENT]
    number = {"evict 1": 1, "evict half": len(here) // 2, "evict all": len(here)}[what]
    return e.ContainersWarned(tuple(e.ContainerWarning(name, 120.0, "is evicted") for name in here[:number]))


if __name__ == "__main__":
    main()
