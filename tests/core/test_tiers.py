"""The elasticity controller: who takes part, and how the number of containers changes (Proteus §3.2, §3.3)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eps.core import events as e
from eps.core import messages as m
from eps.core.hosting import Hosting, StageEntry
from eps.core.job import Job
from eps.core.members import Members
from eps.core.membership import Membership, PartitionTable, SplitTable, spread_evenly
from eps.core.planner import heirs, plan_transfer
from eps.core.reconfig import Change, Operation, Plan, Roster, resolve
from eps.core.tiers import (
    MARGIN,
    MEASURED_CLOCKS,
    MEASURED_S,
    SETTLING_CLOCKS,
    WORTH_CLOCKS,
    WORTH_S,
    Decision,
    HostView,
    ServerTier,
    Stage,
    StageRule,
    TiersView,
    decide,
    resized,
)
from eps.core.types import Address, CoreSettings, MemberId, Role, Team, Tier
from eps.errors import PlanError, UnknownMemberError

SETTINGS = CoreSettings(12, 4, 100)
ONE, TWO, THREE = Stage.PARAM_SERVS, Stage.ACTIVE_PSS, Stage.NO_RELIABLE_WORKERS


def hosts(reliable: int, transient: int) -> tuple[HostView, ...]:
    tiers = [Tier.RELIABLE] * reliable + [Tier.TRANSIENT] * transient
    return tuple(HostView(f"c-{n}", tier, n, f"worker-{n}", f"server-{n}") for n, tier in enumerate(tiers, 1))


def view(
    reliable: int,
    transient: int,
    rule: StageRule | str = StageRule.RATIO,
    partitions: int = 64,
    splits: int = 256,
    **more: object,
) -> TiersView:
    found = TiersView(hosts(reliable, transient), StageRule(rule), partitions, splits)
    return replace(found, **more)  # type: ignore[arg-type]


def decided(*numbers: int, rule: StageRule | str = StageRule.RATIO, **more: object) -> Decision:
    found = decide(view(*numbers, rule, **more))  # type: ignore[arg-type]
    assert found is not None
    return found


def workers(*numbers: int) -> tuple[MemberId, ...]:
    return tuple(f"worker-{n}" for n in numbers)


def servers(*numbers: int) -> tuple[MemberId, ...]:
    return tuple(f"server-{n}" for n in numbers)


def roster(reliable: int, transient: int, rule: StageRule | str = "1") -> Roster:
    tiers = view(reliable, transient, rule, SETTINGS.num_partitions, SETTINGS.num_splits)
    found = decide(tiers)
    assert found is not None
    following = len(tiers.hosts) + 1
    return Roster(found.workers, found.servers, following, following, tiers, found.owners)


# ---- Fig. 4: two reliable machines, 1 and 2, and six transient ones, 3 to 8


def test_fig_4a_stage_1_has_servers_on_reliable_containers_only() -> None:
    found = decided(2, 6, rule="1")
    assert found.stage is ONE and found.owners == found.servers == servers(1, 2) and not found.backups
    assert found.workers == workers(*range(1, 9))


def test_fig_4b_stage_2_has_active_servers_on_transient_and_backups_on_reliable_containers() -> None:
    """On half of the transient containers, as §6.4 recommends; the figure has an ActivePS on each."""
    found = decided(2, 6)
    assert found.stage is TWO and found.owners == servers(3, 4, 5) and found.backups == servers(1, 2)
    assert found.workers == workers(*range(1, 9))
    assert found.reason == (
        "2 reliable and 6 transient containers: beyond 1:1 the reliable ones cannot serve all workers"
    )


def test_fig_4c_stage_3_has_no_worker_on_a_reliable_container() -> None:
    found = decided(2, 6, rule="3")
    assert found.stage is THREE and found.owners == servers(3, 4, 5) and found.backups == servers(1, 2)
    assert found.workers == workers(*range(3, 9))


@pytest.mark.parametrize(
    ("rule", "tiers"),
    [
        ("1", {1: "ParamServ", 2: "ParamServ", 3: "", 8: ""}),
        ("2", {1: "BackupPS", 2: "BackupPS", 3: "ActivePS", 4: "ActivePS", 5: "ActivePS", 6: "", 8: ""}),
        ("3", {1: "BackupPS", 2: "BackupPS", 3: "ActivePS", 4: "ActivePS", 5: "ActivePS", 6: "", 8: ""}),
    ],
)
def test_table_1_names_the_function_of_each_server(rule: str, tiers: dict[int, str]) -> None:
    hosting, members = Hosting({Tier.RELIABLE: 2, Tier.TRANSIENT: 6}, StageRule(rule), 64, 64), Members()
    hosting.request_first(members, 0.0)
    found = decided(2, 6, rule=rule)
    membership = _membership(1, -1, found.workers, found.servers, found.owners)
    for number, expected in tiers.items():
        tier = hosting.server_tier(f"server-{number}", membership, members)
        assert (tier or "") == expected, number
    assert hosting.is_exposed(membership.partitions.owners, members) == (rule != "1")
    assert hosting.is_exposed(("server-1", "server-8"), members) and not hosting.is_exposed(servers(1, 2), members)
    # All on reliable containers that stay, in every stage; of two that go, one is warned, and one leaves by a plan.
    backups = hosting.backups(membership, members, (), None)
    assert [(target.item, target.target) for target in backups] == [(0, "server-1"), (1, "server-2")]
    warned = [members.by_name["server-1"].container]
    assert [(b.item, b.target) for b in hosting.backups(membership, members, warned, None)] == [(0, "server-2")]
    plan = Plan(1, "", Change(Operation.TIERS, 1), going=Team((), ("server-2",)))
    assert hosting.backups(membership, members, warned, plan) == ()
    assert {ServerTier(name) for name in tiers.values() if name} <= set(ServerTier)


# ---- Fig. 5: containers join and are evicted


def phase(before: Membership | None, tiers: TiersView) -> Membership:
    """Return the membership that a plan makes of what the controller decides; splits are dealt evenly at first."""
    found = decide(tiers)
    assert found is not None
    if before is None:
        owners = spread_evenly(8, found.owners)
        active = SplitTable.of(spread_evenly(40, found.workers))
        return _membership(1, 0, found.workers, found.servers, owners, active)
    stay_w = tuple(name for name in before.workers if name in found.workers)
    stay_s = tuple(name for name in before.servers if name in found.servers)
    coming = Team(
        tuple(n for n in found.workers if n not in stay_w), tuple(n for n in found.servers if n not in stay_s)
    )
    going = Team(
        tuple(n for n in before.workers if n not in stay_w), tuple(n for n in before.servers if n not in stay_s)
    )
    transfer = plan_transfer(before, coming, going, found.owners)
    now_w, now_s = stay_w + coming.workers, stay_s + coming.servers
    return _membership(before.version + 1, 0, now_w, now_s, transfer.partitions.owners, transfer.splits)


def test_fig_5_phases() -> None:
    """Machine n of the figure is container n + 1 here; 40 pieces of data are 40 splits.

    Deviations: a newcomer loads the quarter on which it works, and not the half that it may get later; the donors keep
    the copies, as EPS Fig. 8 has it.  The figure shows an ActivePS on each spot instance; here half of them have one.
    """
    stage_3 = view(1, 2, "3")
    # Phase 1: an on-demand machine with a BackupPS, two spot instances with half of the data each.
    first = phase(None, stage_3)
    assert first.workers == workers(2, 3) and first.servers == servers(2, 1)
    assert first.splits.active_on("worker-2") == tuple(range(20))
    assert first.splits.active_on("worker-3") == tuple(range(20, 40))
    assert set(first.partitions.owners) == {"server-2"}
    # Phase 2: two more; each works on a quarter.
    second = phase(first, replace(stage_3, hosts=hosts(1, 4)))
    assert second.splits.counts(second.workers) == dict.fromkeys(workers(2, 3, 4, 5), 10)
    assert second.splits.active_on("worker-2") == tuple(range(10))
    assert second.splits.active_on("worker-3") == tuple(range(20, 30))
    assert set(second.splits.active_on("worker-4")) | set(second.splits.active_on("worker-5")) == {
        *range(10, 20), *range(30, 40)
    }  # fmt: skip
    assert second.splits.inactive_on("worker-2") == tuple(range(10, 20))
    assert second.splits.inactive_on("worker-3") == tuple(range(30, 40))
    assert set(second.partitions.owners) == {"server-2", "server-3"}
    # Phase 3: the first two are evicted; those that joined have half of the data each, and keep what they had.
    left = tuple(host for host in hosts(1, 4) if host.container not in ("c-2", "c-3"))
    third = phase(second, replace(stage_3, hosts=left))
    assert third.workers == workers(4, 5) and third.splits.counts(third.workers) == dict.fromkeys(third.workers, 20)
    for name in third.workers:
        assert set(second.splits.active_on(name)) < set(third.splits.active_on(name))
    assert set(third.partitions.owners) == {"server-4"} and third.servers == servers(1, 4)
    # Phase 4: two others join, and get a quarter each again.
    joined = (*left, *(HostView(f"c-{n}", Tier.TRANSIENT, n, f"worker-{n}", f"server-{n}") for n in (6, 7)))
    fourth = phase(third, replace(stage_3, hosts=joined))
    assert fourth.splits.counts(fourth.workers) == dict.fromkeys(workers(4, 5, 6, 7), 10)
    assert set(fourth.partitions.owners) == {"server-4", "server-5"}


@pytest.mark.parametrize("warned", [True, False])
def test_fig_5_previous_owners_need_no_data_when_those_that_joined_go_again(warned: bool) -> None:
    """Proteus §3.3: the previous owner of a worker's data takes ownership of it, and has it."""
    first = phase(None, view(1, 2, "3"))
    second = phase(first, view(1, 4, "3"))
    if warned:
        transfer = plan_transfer(second, Team(), Team(workers(4, 5)))
        assert not any(move.sends_bytes for move in transfer.split_moves)
        assert transfer.splits.active == first.splits.active
    else:
        assert heirs(second.splits, first.workers).active == first.splits.active


# ---- the rules


@pytest.mark.parametrize(
    ("reliable", "transient", "stage"),
    [
        (1, 0, ONE), (4, 0, ONE), (1, 1, ONE), (4, 4, ONE), (8, 3, ONE),
        (1, 2, TWO), (4, 5, TWO), (1, 15, TWO), (4, 60, TWO),
        (1, 16, THREE), (4, 61, THREE), (1, 63, THREE),
    ],
)  # fmt: skip
def test_the_ratio_decides_on_the_stage(reliable: int, transient: int, stage: Stage) -> None:
    """Proteus §6.4: stage 2 beyond 1:1, stage 3 beyond 15:1."""
    for rule in ("ratio", "auto"):
        found = decided(reliable, transient, rule=rule)
        assert found.stage is stage
        half = -(-transient // 2) if stage is not ONE else 0
        assert len(found.owners) == (half or reliable) and len(found.backups) == (reliable if half else 0)
        assert len(found.workers) == transient + (0 if stage is THREE else reliable)
        assert f"{reliable} reliable and {transient} transient containers" in found.reason


@pytest.mark.parametrize("rule", ["1", "2", "3"])
@pytest.mark.parametrize("transient", [0, 1, 40])
def test_a_number_fixes_the_stage_while_there_are_transient_containers(rule: str, transient: int) -> None:
    assert decided(1, transient, rule=rule).stage is (Stage(int(rule)) if transient else ONE)


def test_active_servers_are_on_the_longest_running_half() -> None:
    found = view(1, 5, "2")
    shuffled = tuple(found.hosts[n] for n in (4, 0, 2, 5, 1, 3))
    decision = decide(replace(found, hosts=shuffled))
    assert decision is not None and decision.owners == servers(2, 3, 4)
    # The oldest has gone: the next one takes its place.
    decision = decide(replace(found, hosts=tuple(host for host in shuffled if host.container != "c-2")))
    assert decision is not None and decision.owners == servers(3, 4)


def test_active_servers_are_at_most_as_many_as_partitions() -> None:
    assert decided(1, 40, rule="2", partitions=8).owners == servers(*range(2, 10))


def test_a_job_uses_no_more_workers_than_splits_and_no_more_servers_than_partitions() -> None:
    assert decided(1, 40, rule="1", splits=20).workers == workers(*range(1, 21))
    assert decided(1, 40, rule="3", splits=20).workers == workers(*range(2, 22))
    assert decided(20, 0, partitions=12).owners == decided(20, 30, rule="1", partitions=12).owners
    assert decided(20, 0, partitions=12).servers == servers(*range(1, 13))


def test_a_server_that_has_not_registered_again_is_skipped() -> None:
    found = view(1, 4, "2")
    without = (found.hosts[0], replace(found.hosts[1], server=None), *found.hosts[2:])
    decision = decide(replace(found, hosts=without))
    assert decision is not None and decision.owners == servers(3, 4) and decision.workers == workers(1, 2, 3, 4, 5)
    none_has_one = (found.hosts[0], *(replace(host, server=None) for host in found.hosts[1:]))
    decision = decide(replace(found, hosts=none_has_one))
    assert decision is not None and decision.stage is ONE and decision.owners == servers(1)
    assert decision.reason == "no server on a transient container is ready"


def test_a_warned_server_that_keeps_copies_stays_but_does_nothing_else() -> None:
    """It leaves once a later cut is on others."""
    found = view(2, 4, "2")
    leaving = replace(found, hosts=(replace(found.hosts[0], leaving=True), *found.hosts[1:]))
    decision = decide(leaving)
    assert decision is not None and decision.stage is TWO and decision.owners == servers(3, 4)
    assert set(decision.backups) == {"server-1", "server-2"} and decision.workers == workers(2, 3, 4, 5, 6)
    assert (leaving.count(Tier.RELIABLE), leaving.count(Tier.TRANSIENT)) == (1, 4)
    assert decision.reason.startswith("1 reliable and 4 transient containers")
    # In stage 1 nobody needs the copies.
    decision = decide(replace(leaving, rule=StageRule.STAGE_1))
    assert decision is not None and decision.servers == servers(2)
    # Nothing can own the partitions after a loss if no other is left.
    assert decide(replace(leaving, hosts=tuple(host for host in leaving.hosts if host.container != "c-2"))) is None


def test_the_containers_that_a_change_removes_are_those_that_stay_otherwise() -> None:
    found = view(2, 1)
    leaving = replace(found, hosts=(found.hosts[0], replace(found.hosts[1], leaving=True), found.hosts[2]))
    with pytest.raises(PlanError, match="at least one reliable"):
        resized(leaving, ((Tier.RELIABLE, -1),), 4, 4)
    with pytest.raises(PlanError, match="has 1 reliable"):
        resized(leaving, ((Tier.RELIABLE, -2),), 4, 4)
    after = resized(leaving, ((Tier.RELIABLE, 1),), 4, 4)
    assert [host.server for host in after.hosts] == [*servers(1, 2, 3), "server-4"] and after.hosts[1].leaving


def test_the_holders_of_the_committed_cut_are_seen_though_they_are_warned() -> None:
    members, hosting = Members(), Hosting({Tier.RELIABLE: 2, Tier.TRANSIENT: 2}, StageRule.STAGE_2, 4, 12)
    hosting.request_first(members, 0.0)
    for number, member in enumerate(members.by_name.values(), 1):
        member.address = Address("m", number)
    container = {name: member.container for name, member in members.by_name.items()}
    warned = [container["server-1"], container["server-3"]]
    for holders, expected in (((), []), (servers(2), []), (servers(1, 2), servers(1)), (servers(4, 1), servers(1))):
        found = hosting.view(members, warned, None, holders)
        assert [host.server for host in found.hosts if host.leaving] == list(expected)
        assert [host.server for host in found.hosts if not host.leaving] == ["server-2", "server-4"]
        # Its successor is requested at once.
        assert hosting.lacking(found) == 1


def test_without_a_reliable_container_there_is_nothing_to_decide() -> None:
    assert decide(view(0, 3)) is None and decide(view(0, 0)) is None
    alone = HostView("c-1", Tier.RELIABLE, 1, None, "server-1")
    assert decide(replace(view(1, 0), hosts=(alone,))) is None
    # In stage 3 nobody would work.
    idle = tuple(replace(host, worker=None) if host.tier is Tier.TRANSIENT else host for host in hosts(1, 2))
    assert decide(replace(view(1, 2, "3"), hosts=idle)) is None


@pytest.mark.parametrize(
    ("transient", "stage", "measured", "left_s", "expected"),
    [
        # Nothing measured yet: the ratio.
        (2, ONE, {}, 1000.0, TWO),
        # Near a threshold the stage on the other side is tried once, if that is worth it.
        (2, TWO, {TWO: 0.1}, 1000.0, ONE),
        (2, TWO, {TWO: 0.1}, WORTH_S - 1, TWO),
        (2, TWO, {TWO: 10.0}, 10.0 * WORTH_CLOCKS, ONE),
        (2, TWO, {TWO: 10.0}, 10.0 * WORTH_CLOCKS - 1, TWO),
        (2, ONE, {ONE: 0.12, TWO: 0.1}, 1000.0, TWO),
        (2, ONE, {ONE: 0.09, TWO: 0.1}, 1000.0, ONE),
        # Within the margin the job stays where it is.
        (2, ONE, {ONE: 0.1 * (1 + MARGIN / 2), TWO: 0.1}, 1000.0, ONE),
        (2, TWO, {ONE: 0.1, TWO: 0.1 * (1 + MARGIN / 2)}, 1000.0, TWO),
        (2, TWO, {ONE: 0.1, TWO: 0.1 * (1 + MARGIN * 2)}, 1000.0, ONE),
        # Far from the threshold it is not.
        (63, THREE, {THREE: 0.1}, 1000.0, THREE),
        (20, THREE, {THREE: 0.1}, 1000.0, TWO),
    ],
)
def test_auto_compares_the_stages_on_both_sides_of_a_threshold(
    transient: int, stage: Stage, measured: dict[Stage, float], left_s: float, expected: Stage
) -> None:
    found = decided(1, transient, rule="auto", stage=stage, measured=measured, left_s=left_s)
    assert found.stage is expected, found.reason
    # The ratio alone does not look at measurements.
    by_ratio = decided(1, transient, rule="ratio", stage=stage, measured=measured, left_s=left_s)
    assert by_ratio.stage is decided(1, transient).stage


def test_auto_keeps_what_it_measured_when_the_number_of_containers_changes() -> None:
    def found(transient: int, **more: object) -> Decision:
        return decided(1, transient, **{"rule": "auto", "stage": ONE, "has_compared": True, **more})  # type: ignore[arg-type]

    assert found(3).stage is ONE and found(3).reason.endswith("stage 1 was faster with other numbers")
    assert found(1, stage=TWO).stage is TWO
    assert found(20, stage=TWO).stage is TWO and found(14, stage=THREE).stage is THREE
    # Where the ratio alone decides, it does; so it does as long as nothing was compared.
    assert found(8).stage is TWO and found(63, stage=TWO).stage is THREE and found(0, stage=TWO).stage is ONE
    assert found(3, has_compared=False).stage is TWO and found(3, rule="ratio").stage is TWO
    # With the new number it compares again.
    assert found(3, measured={ONE: 0.1}, left_s=1000.0).stage is TWO


# ---- changes of the number of containers


def test_added_containers_get_the_next_numbers() -> None:
    change = Change(Operation.TIERS, 3, containers=((Tier.RELIABLE, 1), (Tier.TRANSIENT, 2)))
    after, coming, going = resolve(roster(1, 1), change, SETTINGS)
    assert coming == Team(workers(3, 4, 5), servers(3)) and not going.members
    assert (after.next_worker, after.next_server) == (6, 6)
    assert after.tiers is not None and [host.container for host in after.tiers.hosts] == ["c-1", "c-2", "", "", ""]


def test_a_change_may_be_one_of_the_stage() -> None:
    more = Change(Operation.TIERS, 3, containers=((Tier.TRANSIENT, 3),))
    after, coming, going = resolve(roster(1, 1, "ratio"), more, SETTINGS)
    assert after.owners == servers(2, 3) and after.servers == servers(1, 2, 3)
    assert coming == Team(workers(3, 4, 5), servers(2, 3)) and not going.members
    fewer = Change(Operation.TIERS, 3, containers=((Tier.TRANSIENT, -3),))
    after, coming, going = resolve(replace(after, tiers=view(1, 4)), fewer, SETTINGS)
    assert after.owners == servers(1) and going == Team(workers(3, 4, 5), servers(2, 3)) and not coming.members


def test_the_youngest_containers_leave_first() -> None:
    change = Change(Operation.TIERS, 2, containers=((Tier.TRANSIENT, -2),))
    after, coming, going = resolve(roster(1, 3), change, SETTINGS)
    assert not coming.members and going == Team(workers(3, 4))
    assert after.tiers is not None and after.tiers.hosts == hosts(1, 1)


@pytest.mark.parametrize(
    ("deltas", "reason"),
    [
        (((Tier.TRANSIENT, -3),), "has 2 transient"),
        (((Tier.RELIABLE, -1),), "at least one reliable"),
        (((Tier.TRANSIENT, 10),), "13 workers .* 12 splits"),
    ],
)
def test_changes_that_would_break_the_job_are_refused(deltas: tuple[tuple[Tier, int], ...], reason: str) -> None:
    change = Change(Operation.TIERS, sum(abs(n) for _, n in deltas), containers=deltas)
    with pytest.raises(PlanError, match=reason):
        resolve(roster(1, 2), change, SETTINGS)


def test_a_container_without_partitions_only_works() -> None:
    change = Change(Operation.TIERS, 4, containers=((Tier.RELIABLE, 4),))
    after, coming, going = resolve(roster(1, 0), change, SETTINGS)
    assert after.workers == workers(*range(1, 6)) and after.servers == servers(*range(1, 5)), "four partitions"
    assert coming == Team(workers(*range(2, 6)), servers(*range(2, 5))) and going == Team()


def test_containers_leave_by_name() -> None:
    change = Change(Operation.TIERS, 2, ("c-1", "c-3"))
    assert str(change) == change.asked == "containers=-c-1,c-3"
    assert change.removes_members and not change.adds_members
    after, coming, going = resolve(roster(2, 2), change, SETTINGS)
    assert going == Team(workers(1, 3), servers(1)) and not coming.members
    assert after.tiers is not None and [host.container for host in after.tiers.hosts] == ["c-2", "c-4"]
    assert not after.tiers.measured
    with pytest.raises(UnknownMemberError, match="c-9: not a container of the job"):
        resolve(roster(2, 2), Change(Operation.TIERS, 2, ("c-1", "c-9")), SETTINGS)
    with pytest.raises(PlanError, match="containers=-c-1,c-2: a job must keep at least one reliable"):
        resolve(roster(2, 2), Change(Operation.TIERS, 2, ("c-1", "c-2")), SETTINGS)
    plain = Roster(("worker-1",), ("server-1",), 2, 2)
    with pytest.raises(PlanError, match="no tiers"):
        resolve(plain, change, SETTINGS)


def test_a_change_of_the_stage_alone_leaves_out_what_is_beyond_the_limits() -> None:
    """A job in stage 3 may have a worker for each split, and tries stage 2 nevertheless."""
    tiers = view(3, 12, "2", SETTINGS.num_partitions, SETTINGS.num_splits)
    active, following = servers(*range(4, 8)), len(tiers.hosts) + 1
    known = Roster(workers(*range(4, 16)), (*active, *servers(1, 2, 3)), following, following, tiers, active)
    after, coming, going = resolve(known, Change(Operation.TIERS, 0), SETTINGS)
    assert after.workers == workers(*range(4, 13), 1, 2, 3) and coming.workers == workers(1, 2, 3)
    assert going.workers == workers(13, 14, 15) and len(after.workers) == SETTINGS.num_splits
    # More containers than it could use in every stage are refused.
    with pytest.raises(PlanError, match="16 workers would share 12 splits"):
        resolve(known, Change(Operation.TIERS, 1, containers=((Tier.TRANSIENT, 1),)), SETTINGS)


def test_a_job_has_tiers_or_it_does_not() -> None:
    with pytest.raises(PlanError, match=r"transient=\+2"):
        resolve(roster(1, 1), Change(Operation.ADD_WORKERS, 1), SETTINGS)
    plain = Roster(("worker-1",), ("server-1",), 2, 2)
    with pytest.raises(PlanError, match="no tiers"):
        resolve(plain, Change(Operation.TIERS, 1, containers=((Tier.TRANSIENT, 1),)), SETTINGS)


def test_resized_keeps_the_containers_that_stay() -> None:
    before = view(2, 3, measured={TWO: 0.1})
    after = resized(before, ((Tier.RELIABLE, -1), (Tier.TRANSIENT, -3)), 6, 6)
    # What was measured holds for the earlier number of containers.
    assert after.hosts == hosts(1, 0) and not after.measured
    assert resized(before, (), 6, 6) == before


def _membership(
    version: int,
    from_clock: int,
    members: tuple[MemberId, ...],
    servers: tuple[MemberId, ...],
    owners: tuple[MemberId, ...],
    active: SplitTable | None = None,
) -> Membership:
    table = PartitionTable(owners if active is not None else spread_evenly(4, owners))
    splits = active or SplitTable.of(spread_evenly(12, members))
    addresses = {name: Address(name, 1) for name in (*members, *servers)}
    return Membership(version, from_clock, members, servers, table, splits, addresses)


def test_stages_are_recorded_when_stage_or_number_of_containers_change() -> None:
    members, hosting = Members(), Hosting({Tier.RELIABLE: 1, Tier.TRANSIENT: 2}, StageRule.RATIO, 4, 12)
    hosting.request_first(members, 0.0)
    one, all_of_them = servers(1), workers(1, 2, 3)
    for found in (
        _membership(1, -1, all_of_them, one, one),
        _membership(2, 5, all_of_them, one, one),
        _membership(3, 9, all_of_them, servers(1, 2), servers(2)),
        _membership(4, 12, workers(2, 3), servers(1, 2), servers(2)),
        _membership(5, 20, workers(1, 2), servers(1, 2), servers(2)),
        _membership(6, 30, workers(1), one, one),
    ):
        hosting.note(found, members)
    assert hosting.stages == [
        StageEntry(0, ONE, 1, 2),
        StageEntry(9, TWO, 1, 2),
        StageEntry(12, THREE, 1, 2),
        StageEntry(20, TWO, 1, 1),
        StageEntry(30, ONE, 1, 0),
    ]


def test_a_stage_is_measured_once_it_has_settled_and_forgotten_with_the_number_of_containers() -> None:
    members, hosting = Members(), Hosting({Tier.RELIABLE: 1, Tier.TRANSIENT: 2}, StageRule.AUTO, 4, 12)
    hosting.request_first(members, 0.0)
    hosting.note(_membership(1, 0, workers(1, 2, 3), servers(1), servers(1)), members)
    times, enough = [float(clock) for clock in range(40)], SETTLING_CLOCKS + MEASURED_CLOCKS
    hosting.measure(times[: enough - 1], 100)
    assert not hosting.view(members, (), None).measured
    hosting.measure([time_s * MEASURED_S / 100 for time_s in times[:enough]], 100)
    assert not hosting.view(members, (), None).measured, "too short"
    hosting.measure(times, 100)
    found = hosting.view(members, (), None)
    assert found.measured == {ONE: 1.0} and found.left_s == 60.0
    hosting.note(_membership(2, 40, workers(1, 2, 3), servers(1, 2), servers(2)), members)
    assert hosting.view(members, (), None).measured == found.measured and not found.has_compared
    hosting.measure([*times, *(40 + 2.0 * clock for clock in range(20))], 100)
    found = hosting.view(members, (), None)
    assert found.measured == {ONE: 1.0, TWO: 2.0} and found.has_compared
    hosting.note(_membership(3, 60, workers(1, 2), servers(1, 2), servers(2)), members)
    found = hosting.view(members, (), None)
    assert not found.measured and found.has_compared and found.stage is TWO


def test_a_spare_worker_for_a_recovery_is_preferably_one_that_stays_and_on_a_reliable_container() -> None:
    members, hosting = Members(), Hosting({Tier.RELIABLE: 1, Tier.TRANSIENT: 2}, StageRule.STAGE_3, 4, 12)
    hosting.request_first(members, 0.0)
    found = view(1, 2)
    assert hosting.spare(members, found, Role.WORKER, ()) is None, "none has registered"
    for number, member in enumerate(members.by_name.values(), 1):
        member.address = Address("m", number)
    for leaving, role, expected in (
        ((), Role.WORKER, "worker-1"),
        (("worker-1",), Role.WORKER, "worker-2"),
        (workers(1, 2, 3), Role.WORKER, "worker-1"),
        ((), Role.SERVER, "server-1"),
        (("server-1",), Role.SERVER, "server-1"),
    ):
        spare = hosting.spare(members, found, role, leaving)
        assert spare is not None and spare.name == expected


def test_a_process_whose_member_was_dismissed_without_hearing_of_it_begins_the_next() -> None:
    """Its order to shut down got lost with a master, and it registers with the next one."""
    job, now_s = Job(SETTINGS, 2, 2, tiers={Tier.RELIABLE: 1, Tier.TRANSIENT: 1}, stage_rule=StageRule.STAGE_1), 1.0
    job.start(0.0)
    for number, member in enumerate(list(job.members.by_name.values()), 1):
        job.step(e.ContainerLaunched(member.container, 7), now_s)
        job.step(e.MemberRegistered(member.seat, Address("m", number), 7), now_s)
    spare = job.members.by_name["server-2"]
    assert job.membership is not None and spare.name not in job.membership.servers
    # The next master has this in its log.
    job.members.dismiss([spare.name], "the plan was aborted")
    assert spare.address is not None
    heard = e.MemberRegistered(spare.seat, spare.address, 7, heard_generation=1, heard_step=4)
    commands = job.step(heard, now_s)
    name = next(command.name for command in commands if isinstance(command, e.Name))
    assert name == "server-3"
    assert e.Send(name, m.Shutdown("its member was dismissed")) in commands
    assert not any(isinstance(command, e.ReleaseContainer | e.EndJob) for command in commands)
    assert name not in job.members.by_name
    # Its process begins another member, which is spare.
    commands = job.step(e.MemberRegistered(spare.seat, Address("m", 9), 7), now_s)
    assert e.Name(spare.seat, "server-4") in commands and job.members.by_name["server-4"].seat == spare.seat
    job.validate()
