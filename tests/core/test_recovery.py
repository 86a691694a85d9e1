"""Recovery decides who takes over from lost members, and from which clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, combinations
from random import Random

import pytest

from eps.core import messages as m
from eps.core.membership import Membership, PartitionTable, SplitTable, spread_evenly
from eps.core.partition_state import Holding
from eps.core.planner import heirs, standing_followers
from eps.core.recovery import Inquiry, RestorePoint, roll_back, take_over
from eps.core.types import UNBOUNDED, Address, CoreSettings, Role
from tests.tiers import rotating

SPLITS, PARTITIONS = 6, 4
BSP = CoreSettings(SPLITS, PARTITIONS, 50, reproducible=False, followers=1)
ASP = CoreSettings(SPLITS, PARTITIONS, 50, staleness=UNBOUNDED, reproducible=False, followers=1)
WORKERS = ("worker-1", "worker-2", "worker-3")
SERVERS = ("server-1", "server-2", "server-3")


def membership(workers: Sequence[str] = WORKERS, servers: Sequence[str] = SERVERS, followers: int = 1) -> Membership:
    owners = spread_evenly(PARTITIONS, servers)
    return Membership(
        7,
        20,
        tuple(workers),
        tuple(servers),
        PartitionTable(owners, standing_followers(owners, servers, ()) if followers else ()),
        SplitTable.of(spread_evenly(SPLITS, workers)),
        {name: Address(name, 1) for name in (*workers, *servers)},
        incarnation=2,
        checkpoint="0002-00000004",
    )


Clocks = Mapping[tuple[str, int], Sequence[int] | int]


def recovered(
    before: Membership, lost: Sequence[str], clocks: Clocks | None = None, reads: Mapping[str, int] | None = None
) -> Inquiry:
    """Return a recovery to which all who are left have answered.

    Parameters
    ----------
    clocks : mapping
        (server, partition) -> its clock, or one for each split; 20 where nothing is said.
    reads : mapping
        Worker -> the last clock that it has read; 19 where nothing is said.
    """
    recovery = Inquiry(3, dict.fromkeys(lost, "signal 9"))
    for name in recovery.survivors(before):
        if name in before.workers:
            recovery.hear(m.Inventory(name, 3, (reads or {}).get(name, 19)))
            continue
        held = []
        for partition, owner in enumerate(before.partitions.owners):
            if name == owner or name in before.partitions.followers_of(partition):
                clock = (clocks or {}).get((name, partition), 20)
                splits = (clock,) * SPLITS if isinstance(clock, int) else tuple(clock)
                held.append(m.HeldPartition(partition, Holding.OWNER if name == owner else Holding.FOLLOWER, splits))
        recovery.hear(m.Inventory(name, 3, partitions=tuple(held)))
    assert not recovery.missing(before)
    return recovery


def taken_over(before: Membership, recovery: Inquiry, settings: CoreSettings = BSP) -> Membership:
    found = take_over(before, recovery, settings)
    assert found is not None
    found.validate()
    return found


# ---- who is asked


def test_everybody_who_is_left_is_asked_until_it_has_answered() -> None:
    before, recovery = membership(), Inquiry(3, {"server-2": "signal 9"})

    asked = [name for name, _ in recovery.orders(before)]
    recovery.hear(m.Inventory("worker-1", 3, 19))

    assert asked == list(before.workers)
    assert "worker-1" not in recovery.missing(before)
    assert [name for name, _ in recovery.orders(before)] == asked[1:]
    for name in asked[1:]:
        recovery.hear(m.Inventory(name, 3, 19))
    assert [name for name, _ in recovery.orders(before)] == [n for n in before.servers if n != "server-2"]
    assert recovery.missing(before) == recovery.asked(before)


def test_servers_are_asked_once_no_worker_reads_any_more() -> None:
    """Asked before, an owner could answer, complete a clock that a worker reads then, and count as behind."""
    before, recovery = membership(), Inquiry(3, {"worker-1": "signal 9"})
    workers = [name for name in before.workers if name != "worker-1"]
    for name in workers:
        assert not {to for to, _ in recovery.orders(before)} & set(before.servers)
        recovery.hear(m.Inventory(name, 3, 19))

    assert recovery.asked(before) == before.servers


@pytest.mark.parametrize(
    "answer", [m.Inventory("worker-1", 2, 19), m.Inventory("server-2", 3)], ids=["earlier question", "lost member"]
)
def test_answer_to_an_earlier_question_or_of_a_lost_member_does_not_count(answer: m.Inventory) -> None:
    recovery = Inquiry(3, {"server-2": "signal 9"})

    recovery.hear(answer)

    assert not recovery.inventories


def test_role_of_which_nobody_is_left_or_on_the_way_is_empty() -> None:
    before = membership()
    recovery = Inquiry(3, dict.fromkeys(SERVERS, "signal 9"))

    empty = recovery.empty_roles(before)
    recovery.newcomers["server-4"], recovery.roles["server-4"] = None, Role.SERVER

    assert (empty, recovery.empty_roles(before)) == ((Role.SERVER,), ())
    assert recovery.missing(before)[-1] == "server-4"


# ---- take over


def test_splits_of_a_lost_worker_go_to_heirs_and_nothing_else_changes_hands() -> None:
    before = membership()

    after = taken_over(before, recovered(before, ["worker-2"]))

    assert after.workers == ("worker-1", "worker-3")
    assert after.partitions == before.partitions
    moved = [s for s in range(SPLITS) if after.splits.active[s] != before.splits.active[s]]
    assert moved == list(before.splits.active_on("worker-2"))
    assert (after.version, after.incarnation, after.checkpoint, after.recovery) == (8, 2, "0002-00000004", 3)
    assert after.takes_over and not after.goes_back


def test_partitions_of_a_lost_server_go_to_their_followers() -> None:
    before = membership()

    after = taken_over(before, recovered(before, ["server-2"]))

    for partition, owner in enumerate(before.partitions.owners):
        heir = before.partitions.followers_of(partition)[0] if owner == "server-2" else owner
        assert after.partitions.owners[partition] == heir
        left = [f for f in before.partitions.followers_of(partition) if f not in ("server-2", heir)]
        assert list(after.partitions.followers_of(partition)) == left


def test_bsp_heirs_begin_with_the_first_clock_that_some_partition_lacks() -> None:
    """The worker was lost after it had pushed to some servers and not to others."""
    before = membership()
    owner = before.partitions.owners[2]

    after = taken_over(before, recovered(before, ["worker-2"], {(owner, 2): 19}))

    assert (after.from_clock, after.split_clocks) == (19, (19,) * SPLITS)


def test_without_bound_each_split_begins_with_the_first_clock_that_some_partition_lacks_of_it() -> None:
    before = membership()
    owner = before.partitions.owners[0]

    after = taken_over(before, recovered(before, ["worker-2"], {(owner, 0): (20, 18, 21, 20, 17, 20)}), ASP)

    assert (after.from_clock, after.split_clocks) == (17, (20, 18, 20, 20, 17, 20))


def test_follower_that_has_nothing_is_not_counted_on() -> None:
    """The message before it was lost."""
    before = membership()
    recovery = recovered(before, ["worker-1"])
    owned = tuple(h for h in recovery.inventories["server-2"].partitions if h.holding is Holding.OWNER)
    recovery.hear(m.Inventory("server-2", 3, partitions=owned))

    after = taken_over(before, recovery)

    assert after.partitions.owners == before.partitions.owners
    assert before.partitions.followed_by("server-2") and not after.partitions.followed_by("server-2")


def test_partition_without_a_copy_cannot_be_taken_over() -> None:
    before = membership(followers=0)

    assert take_over(before, recovered(before, ["server-2"]), BSP) is None


@pytest.mark.parametrize(("read_clock", "is_there"), [(20, True), (21, False)])
def test_partition_that_has_just_moved_is_where_it_was_until_somebody_has_read_beyond(
    read_clock: int, is_there: bool
) -> None:
    """Its new owner is lost before it has a follower."""
    before = membership(followers=0)
    recovery = recovered(before, ["server-2"], reads=dict.fromkeys(WORKERS, read_clock))
    moved = before.partitions.owned_by("server-2")
    given = tuple(m.HeldPartition(p, Holding.FORMER, (20,) * SPLITS, 19) for p in moved)
    held = recovery.inventories["server-1"].partitions
    recovery.hear(m.Inventory("server-1", 3, partitions=held + given))

    after = take_over(before, recovery, BSP)

    assert (after is not None) == is_there
    assert after is None or {after.partitions.owners[p] for p in moved} == {"server-1"}


def test_copy_that_somebody_has_read_beyond_does_not_count_under_bsp() -> None:
    """Nothing is served that a follower in sync lacks: this one was not in sync."""
    before = membership()
    partition = before.partitions.owned_by("server-2")[0]
    follower = before.partitions.followers_of(partition)[0]
    behind: Clocks = {(follower, partition): 18}

    assert take_over(before, recovered(before, ["server-2"], behind), BSP) is None
    assert taken_over(before, recovered(before, ["server-2"], behind, dict.fromkeys(WORKERS, 18))).from_clock == 18


def test_version_before_that_is_not_kept_is_read_at_another_copy_or_the_job_goes_back() -> None:
    """A partition that came in one piece has its newest version only."""
    before = membership()
    owner, follower = before.partitions.owners[0], before.partitions.followers_of(0)[0]
    other = before.partitions.owners[3]

    def with_oldest(owners: int, followers: int) -> Inquiry:
        recovery = recovered(before, ["worker-2"], {(other, 3): 19})
        for name, oldest in ((owner, owners), (follower, followers)):
            held = tuple(
                m.HeldPartition(h.partition, h.holding, h.next_clock, oldest if h.partition == 0 else h.oldest_clock)
                for h in recovery.inventories[name].partitions
            )
            recovery.hear(m.Inventory(name, 3, partitions=held))
        return recovery

    assert taken_over(before, with_oldest(19, 20)).partitions.owners[0] == owner
    assert taken_over(before, with_oldest(20, 19)).partitions.owners[0] == follower
    assert take_over(before, with_oldest(20, 20), BSP) is None


def test_newcomers_of_a_recovery_join_with_it() -> None:
    before = membership()
    recovery = recovered(before, WORKERS)
    recovery.newcomers["worker-4"], recovery.roles["worker-4"] = Address("new", 1), Role.WORKER

    after = taken_over(before, recovery)

    assert (after.workers, after.addresses["worker-4"]) == (("worker-4",), Address("new", 1))
    assert set(after.splits.active) == {"worker-4"}


def test_any_losses_leave_a_membership_in_which_nothing_is_missing_or_there_is_no_copy() -> None:
    """Random search: sizes, followers, losses and clocks."""
    outcomes = {True: 0, False: 0}
    for seed in rotating(1500):
        random = Random(seed)
        workers = [f"worker-{i + 1}" for i in range(random.randint(1, 6))]
        servers = [f"server-{i + 1}" for i in range(random.randint(1, 4))]
        before = membership(workers, servers, random.choice((0, 1, 1)))
        lost = random.sample(before.members, random.randint(0, len(before.members) - 2))
        if set(workers) <= set(lost):
            lost.remove(workers[0])
        clocks = {(n, p): random.choice((19, 20)) for n in servers for p in range(PARTITIONS)}
        reads = {n: random.choice((18, 19)) for n in workers}
        recovery = recovered(before, lost, clocks, reads)

        after = take_over(before, recovery, BSP)

        outcomes[after is not None] += 1
        copies = [{o, *before.partitions.followers_of(p)} - set(lost) for p, o in enumerate(before.partitions.owners)]
        assert (after is None) == (not all(copies)), seed
        if after is None:
            continue
        after.validate()
        assert not set(after.members) & set(lost)
        held = [clocks[owner, p] for p, owner in enumerate(after.partitions.owners)]
        assert after.from_clock == min(held) and set(after.split_clocks) == {min(held)}
        assert all(reads[w] <= after.from_clock for w in after.workers), "nobody is beyond the clock that is done again"
        for split, holder in enumerate(before.splits.active):
            assert holder in lost or after.splits.active[split] == holder
        loads = after.splits.counts(after.workers)
        given = [loads[w] for w in after.workers if loads[w] > before.splits.counts([w])[w]]
        assert not given or max(given) - min(loads.values()) <= 1, "heirs are those with the fewest"
    assert min(outcomes.values()) > 100, outcomes


# ---- roll back


@pytest.mark.parametrize("followers", [0, 1])
def test_job_that_goes_back_begins_an_incarnation_at_the_start_it_is_given(followers: int) -> None:
    before = membership(followers=followers)
    start = RestorePoint("0002-00000016", 15)

    after = roll_back(before, recovered(before, ["server-2", "worker-1"]), start)

    after.validate()
    assert (after.incarnation, after.goes_back, after.checkpoint) == (3, True, "0002-00000016")
    assert (after.from_clock, after.split_clocks, after.recovery) == (15, (15,) * 6, 3)
    assert after.servers == ("server-1", "server-3") and after.workers == ("worker-2", "worker-3")
    counts = after.partitions.counts(after.servers)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert all(len(after.partitions.followers_of(p)) == followers for p in range(PARTITIONS))


# ---- heirs


def test_heirs_have_the_fewest_splits_and_before_others_a_copy() -> None:
    table = SplitTable(
        ("worker-1", "worker-1", "worker-2", "worker-3", "worker-3", "worker-3"),
        ((), (), (), ("worker-2",), (), ("worker-1", "worker-2")),
    )

    after = heirs(table, ("worker-1", "worker-2"))

    # Split 3 to worker-2, which has fewer; split 5 to the first of two that have it; split 4 to the one with fewer.
    assert after.active == ("worker-1", "worker-1", "worker-2", "worker-2", "worker-2", "worker-1")
    assert after.inactive == ((), (), (), (), (), ("worker-2",))


def test_heirs_of_any_losses_have_every_split_once_and_copies_only_where_they_are() -> None:
    """Plays every table of four splits on three workers, with every set of survivors."""
    names = WORKERS
    survivors = list(chain.from_iterable(combinations(names, n) for n in (1, 2, 3)))
    for number in range(3**4):
        active = tuple(names[number // 3**i % 3] for i in range(4))
        inactive = tuple((names[(number + i) % 3],) if names[(number + i) % 3] != active[i] else () for i in range(4))
        table = SplitTable(active, inactive)
        for left in survivors:
            after = heirs(table, left)
            assert set(after.active) <= set(left)
            for split in range(4):
                assert active[split] not in left or after.active[split] == active[split]
                assert set(after.inactive[split]) <= set(inactive[split]) & set(left) - {after.active[split]}


# ---- standing followers


def test_one_server_has_nobody_to_follow_it() -> None:
    assert standing_followers(("server-1",) * 3, ("server-1",), ()) == ((), (), ())


def test_partitions_of_one_owner_are_followed_by_all_others_in_turn() -> None:
    """So that no single server inherits everything."""
    servers = tuple(f"server-{i + 1}" for i in range(4))
    owners = spread_evenly(12, servers)

    followers = standing_followers(owners, servers, ())

    for server in servers:
        heirs_of = [followers[p][0] for p in range(12) if owners[p] == server]
        assert sorted(heirs_of) == sorted(set(servers) - {server})


def test_standing_followers_are_on_other_servers_balanced_and_stay_where_they_are() -> None:
    for num_servers in range(2, 6):
        servers = tuple(f"server-{i + 1}" for i in range(num_servers))
        for partitions in range(num_servers, 14):
            owners = spread_evenly(partitions, servers)
            followers = standing_followers(owners, servers, ())

            assert all(len(f) == 1 and f[0] != o for f, o in zip(followers, owners, strict=True))
            loads = [sum(f[0] == s for f in followers) for s in servers]
            assert max(loads) - min(loads) <= 1, (num_servers, partitions, loads)
            assert standing_followers(owners, servers, followers) == followers


def test_any_followers_that_stand_are_kept_as_far_as_they_can_be() -> None:
    for seed in rotating(500):
        random = Random(seed)
        servers = [f"server-{number}" for number in sorted({random.randint(1, 9) for _ in range(6)})]
        if len(servers) < 2:
            continue
        partitions = random.randint(len(servers), 16)
        owners = tuple(random.choice(servers) for _ in range(partitions))
        now = tuple(tuple(random.sample([*servers, "server-99"], random.choice((0, 1)))) for _ in range(partitions))

        found = standing_followers(owners, servers, now)

        share = -(-partitions // len(servers))
        for partition, (follower,) in enumerate(found):
            assert follower in servers and follower != owners[partition]
        for server in servers:
            stood = [p for p in range(partitions) if now[p] == (server,) and owners[p] != server]
            assert sum(found[p] == (server,) for p in stood) >= min(len(stood), share)


def test_a_server_keeps_no_more_followers_than_its_share_and_the_others_go_to_those_with_fewer() -> None:
    """Two servers own three partitions each, and the third has followed all of them: its share is two."""
    servers, owners = ("server-1", "server-2", "server-3"), ("server-1",) * 3 + ("server-2",) * 3

    found = standing_followers(owners, servers, (("server-3",),) * 6)

    assert found == tuple((f"server-{number}",) for number in (3, 3, 2, 1, 3, 1))
