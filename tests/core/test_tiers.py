"""The elasticity controller: who takes part, and how the number of containers changes (Proteus §3.2, §3.3)."""

from __future__ import annotations

import pytest

from eps.core.hosting import Hosting, StageEntry
from eps.core.members import Members
from eps.core.membership import Membership, PartitionTable, SplitTable
from eps.core.reconfig import Change, Operation, Roster, resolve
from eps.core.tiers import HostView, Stage, decide, resized
from eps.core.types import Address, CoreSettings, Team, Tier
from eps.errors import PlanError

SETTINGS = CoreSettings(12, 4, 100)


def hosts(reliable: int, transient: int) -> tuple[HostView, ...]:
    tiers = [Tier.RELIABLE] * reliable + [Tier.TRANSIENT] * transient
    return tuple(HostView(f"c-{n}", tier, n, f"worker-{n}", f"server-{n}") for n, tier in enumerate(tiers, 1))


def roster(reliable: int, transient: int) -> Roster:
    found = decide(views := hosts(reliable, transient))
    assert found is not None
    return Roster(found.workers, found.servers, len(views) + 1, len(views) + 1, views)


def test_servers_are_on_reliable_containers_and_workers_on_all() -> None:
    """Proteus Fig. 4a: two on-demand and six spot machines."""
    found = decide(hosts(2, 6))
    assert found is not None
    assert found.stage is Stage.PARAM_SERVS and found.servers == ("server-1", "server-2")
    assert found.workers == tuple(f"worker-{n}" for n in range(1, 9))
    assert found.reason == "2 reliable and 6 transient containers: servers on the reliable ones, workers on all"


def test_without_a_reliable_container_there_is_nothing_to_decide() -> None:
    assert decide(hosts(0, 3)) is None and decide(()) is None
    assert decide([HostView("c-1", Tier.RELIABLE, 1, None, "server-1")]) is None


def test_added_containers_get_the_next_numbers() -> None:
    change = Change(Operation.TIERS, 3, containers=((Tier.RELIABLE, 1), (Tier.TRANSIENT, 2)))
    after, coming, going = resolve(roster(1, 1), change, SETTINGS)
    assert coming == Team(("worker-3", "worker-4", "worker-5"), ("server-3",)) and not going.members
    assert (after.next_worker, after.next_server) == (6, 6)
    assert after.hosts is not None and [host.container for host in after.hosts] == ["c-1", "c-2", "", "", ""]


def test_the_youngest_containers_leave_first() -> None:
    change = Change(Operation.TIERS, 2, containers=((Tier.TRANSIENT, -2),))
    after, coming, going = resolve(roster(1, 3), change, SETTINGS)
    assert not coming.members and going == Team(("worker-3", "worker-4"))
    assert after.hosts == hosts(1, 1)


@pytest.mark.parametrize(
    ("deltas", "reason"),
    [
        (((Tier.TRANSIENT, -3),), "has 2 transient"),
        (((Tier.RELIABLE, -1),), "at least one reliable"),
        (((Tier.TRANSIENT, 10),), "13 workers .* 12 splits"),
        (((Tier.RELIABLE, 4),), "5 servers .* 4 partitions"),
    ],
)
def test_changes_that_would_break_the_job_are_refused(deltas: tuple[tuple[Tier, int], ...], reason: str) -> None:
    change = Change(Operation.TIERS, sum(abs(n) for _, n in deltas), containers=deltas)
    with pytest.raises(PlanError, match=reason):
        resolve(roster(1, 2), change, SETTINGS)


def test_a_job_has_tiers_or_it_does_not() -> None:
    with pytest.raises(PlanError, match=r"transient=\+2"):
        resolve(roster(1, 1), Change(Operation.ADD_WORKERS, 1), SETTINGS)
    plain = Roster(("worker-1",), ("server-1",), 2, 2)
    with pytest.raises(PlanError, match="no tiers"):
        resolve(plain, Change(Operation.TIERS, 1, containers=((Tier.TRANSIENT, 1),)), SETTINGS)


def test_resized_keeps_the_containers_that_stay() -> None:
    assert resized(hosts(2, 3), ((Tier.RELIABLE, -1), (Tier.TRANSIENT, -3)), 6, 6) == hosts(1, 0)


def test_stages_are_recorded_when_the_number_of_containers_changes() -> None:
    members, hosting = Members(), Hosting({Tier.RELIABLE: 1, Tier.TRANSIENT: 1})
    hosting.request_first(members, 0.0)

    def membership(version: int, from_clock: int, workers: tuple[str, ...]) -> Membership:
        owners, active = PartitionTable(("server-1",) * 4), SplitTable.of(("worker-1",) * 12)
        names = (*workers, "server-1")
        addresses = {name: Address(name, 1) for name in names}
        return Membership(version, from_clock, workers, ("server-1",), owners, active, addresses)

    for found in (
        membership(1, -1, ("worker-1", "worker-2")),
        membership(2, 5, ("worker-1", "worker-2")),
        membership(3, 9, ("worker-1",)),
    ):
        hosting.note(found, members)
    assert hosting.stages == [
        StageEntry(-1, Stage.PARAM_SERVS, 1, 1),
        StageEntry(9, Stage.PARAM_SERVS, 1, 0),
    ]
