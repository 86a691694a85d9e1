"""Members alone: names, containers, phases, memberships."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eps.core import events as e
from eps.core import messages as m
from eps.core.members import MemberPhase, Members
from eps.core.membership import SplitTable
from eps.core.types import Address, CoreSettings, Role, Tier

SETTINGS = CoreSettings(6, 4, 100, followers=1)


def registered(members: Members, container_id: str, now_s: float = 3.0) -> bool:
    event = e.MemberRegistered(container_id, Address(container_id, 1), 7)
    member, again = members.registered(event, 1, now_s)
    assert member is not None
    members.validate()
    return again


def begun() -> Members:
    """Return three workers and two servers that have registered, with their first membership."""
    members = Members()
    for role, number in ((Role.WORKER, 3), (Role.SERVER, 2)):
        for _ in range(number):
            members.request(role, 0.0)
    for container_id in list(members.by_seat):
        assert members.first_membership(SETTINGS) is None
        registered(members, container_id)
    first = members.first_membership(SETTINGS)
    assert first is not None
    members.adopt(first, waits=True)
    members.validate()
    return members


def test_a_member_is_requested_granted_launched_and_registered() -> None:
    members = Members(first_container=5)
    name, commands = members.request(Role.SERVER, 1.0)
    member, seen = members.by_name[name], []
    assert commands == [e.RequestContainer("container-0005", frozenset({Role.SERVER}))]
    for act in (
        lambda: None,
        lambda: members.granted("container-0005", 2.0),
        lambda: members.launched("container-0005", 7, 3.0),
    ):
        act()
        seen.append((member.phase, member.granted, member.launched, member.is_late(9.0, 5.0)))
    again = registered(members, "container-0005", 4.0), registered(members, "container-0005", 5.0)

    assert seen == [
        (MemberPhase.REQUESTED, False, False, False),
        (MemberPhase.GRANTED, True, False, False),
        (MemberPhase.LAUNCHED, True, True, True),
    ]
    assert again == (False, True) and member.phase is MemberPhase.REGISTERED and not member.is_late(99.0, 5.0)
    assert (member.asked_s, member.granted_s, member.launched_s, member.pid) == (1.0, 2.0, 3.0, 7)
    assert (member.tier, member.roles) == (Tier.RELIABLE, frozenset({Role.SERVER}))


def test_names_and_containers_are_never_used_again() -> None:
    members = Members()
    for _ in range(3):
        name, _ = members.request(Role.WORKER, 0.0)
        members.dismiss([name], "not needed")
    last, commands = members.request(Role.WORKER, 0.0)

    assert last == "worker-4" and commands == [e.RequestContainer("container-0004", frozenset({Role.WORKER}))]


def test_another_container_for_the_same_member() -> None:
    members = Members()
    members.request(Role.WORKER, 0.0)
    (member,) = members.ended("container-0001")
    members.request_another(member, 2.0)

    assert members.by_name["worker-1"].container == "container-0002" and not members.ended("container-0001")
    members.validate()


def test_members_are_in_the_order_in_which_they_were_first_asked_for_whatever_their_names() -> None:
    members = Members()
    for role, number in ((Role.WORKER, 11), (Role.SERVER, 1)):
        for _ in range(number):
            members.request(role, 0.0)
    (lost,) = members.ended("container-0002")
    members.request_another(lost, 1.0)
    for container_id in list(members.by_seat):
        registered(members, container_id)
    first = members.first_membership(CoreSettings(11, 1, 100))
    assert first is not None

    assert first.workers == tuple(f"worker-{number}" for number in range(1, 12))


def test_the_first_membership_waits_for_all_and_spreads_what_there_is() -> None:
    members = begun()
    membership = members.membership
    assert membership is not None

    assert membership.workers == ("worker-1", "worker-2", "worker-3") and membership.balance() == (0, 0)
    assert members.unacked == set(membership.members) and members.held == {Role.WORKER: 3, Role.SERVER: 2}
    members.acknowledged(m.MembershipAcked("worker-1", 1))
    members.acknowledged(m.MembershipAcked("worker-2", 7))
    assert members.unacked == set(membership.members) - {"worker-1"}


def test_only_members_that_take_part_and_have_a_container_are_held() -> None:
    members = begun()
    members.request(Role.WORKER, 5.0)
    members.ended("container-0001")
    members.validate()

    assert members.held == {Role.WORKER: 2, Role.SERVER: 2}


def test_a_member_that_is_dismissed_is_told_to_end_if_it_can_be_told() -> None:
    members = begun()
    members.request(Role.WORKER, 5.0)

    assert members.dismiss(["worker-4"], "why") == [e.ReleaseContainer("container-0006")]
    assert members.dismiss(["worker-1"], "why") == [
        e.Send("worker-1", m.Shutdown("why")),
        e.ReleaseContainer("container-0001"),
    ]
    assert members.dismiss(["worker-1"], "why") == []


def test_ways_to_members_that_are_here() -> None:
    members = begun()
    for to in ("container-0004", "container-0005", "elsewhere"):
        members.connected(m.PeerReached("worker-1", Address(to, 1), "shm"))
    members.ended("container-0004")
    members.connected(m.PeerReached("worker-1", Address("container-0005", 1), "tcp"))

    assert members.by_name["worker-1"].ways == {"server-2": "tcp"}


@pytest.mark.parametrize(
    "break_it", ["container", "phase", "address", "held", "membership", "order", "clock", "balance"]
)
def test_validate_finds_what_cannot_be(break_it: str) -> None:
    members = begun()
    match break_it:
        case "container":
            del members.by_seat["container-0001"]
        case "phase":
            members.by_name["worker-1"].phase = MemberPhase.GRANTED
        case "address":
            members.by_name["worker-1"].address = None
        case "held":
            members.held[Role.WORKER] = 2
        case "membership":
            members.memberships.append(members.memberships[0])
        case "order":
            first = members.memberships[0]
            swapped = replace(first, version=2, workers=("worker-2", "worker-1", "worker-3"))
            members.adopt(swapped, waits=True)
        case "clock":
            members.adopt(replace(members.memberships[0], version=2, from_clock=-2), waits=True)
        case "balance":
            splits = SplitTable.of(("worker-1",) * 3 + ("worker-2",) + ("worker-3",) * 2)
            members.adopt(replace(members.memberships[0], version=2, splits=splits), waits=True)
    with pytest.raises(AssertionError):
        members.validate()
