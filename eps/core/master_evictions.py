"""The job master when containers will be taken away: their members leave in time, by an ordinary plan.  L0, pure.

Between :class:`eps.core.master_recovery.RecoveringJob` and :class:`eps.core.master_start.StartingJob`.  What is
decided is in :mod:`eps.core.evictions`; here is when, and what must be said.

Who is not gone at the deadline is lost like anybody else, and recovered from.  After a drain the job asks for members
in the place of those that left, as after losses: its users asked for a size.  What it asks for again it must not take
from whoever the room was meant for, though:

- Where the room is somebody else's to get (``for_others``), the job asks again only for what fits into room that the
  resource manager sees to be free for good (:class:`~eps.core.events.RoomSeen`), and takes back what is not granted
  soon after it was asked for, or after the last grant.
- Where no server would be left and none is granted in the place of those that go, the job gives a worker's container
  up for one (:func:`~eps.core.evictions.gives_room`), before the servers are gone or afterwards: workers without a
  server only hold what others want, too.  Not where somebody manages the job's size, who counts workers and servers and
  grants the last of a role by itself; nor where a worker's container would not do for a server.
- Where somebody manages the job's size it asks for nobody but the last worker and the last server: the containers were
  that manager's to grant, and often it is that manager who has them taken away.

Source: Proteus §3.3; design section 4 (a shrink aborts a growth that still waits).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from contextlib import suppress

from eps.core import events as e
from eps.core.events import JobState
from eps.core.evictions import TAKEN_AWAY, Eviction, Outcome, gives_room, may_go_on, next_to_drain
from eps.core.master_recovery import RecoveringJob
from eps.core.reconfig import Change, Operation, Phase, Plan, Purpose
from eps.core.settings import CoreSettings
from eps.core.types import MemberId, MemberRecord, Role
from eps.errors import EpsError

#: A drain that was aborted is tried again after this long, doubled each time that it was aborted in a row.
DRAIN_AGAIN_S = 0.25
MOST_DRAIN_DOUBLINGS = 5
#: A request that stands for longer without a grant would take what others are given meanwhile.
RETURN_PATIENCE_S = 3.0
#: A server without which the job cannot go on gets a worker's room when it is not granted for so long, much less than
#: what preempted containers are usually left; doubled each time that it has not helped.
ROOM_PATIENCE_S = 3.0


class EvictedJob(RecoveringJob):
    """A job whose containers may be taken away.

    Parameters
    ----------
    settings, num_workers, num_servers
        As of :class:`~eps.core.master_members.JobMembers`.
    """

    #: Somebody else decides about the job's size.
    _managed = False
    #: Roles in whose room one of the other can be had.
    _interchangeable: Collection[Role] = tuple(Role)

    def __init__(self, settings: CoreSettings, num_workers: int, num_servers: int) -> None:
        super().__init__(settings, num_workers, num_servers)
        #: Since when a server is asked for without which the job cannot go on, or since a worker gave its room for it.
        self._no_server_s: float | None = None
        #: Workers that have given their room up since.
        self._rooms = 0
        #: Every eviction that was announced, oldest first.
        self.evictions: list[Eviction] = []
        #: Container -> the one that is not over.
        self._warned: dict[str, Eviction] = {}
        self._drain_at_s = 0.0
        #: Drains that were aborted, one after the other.
        self._not_drained = 0
        #: Role -> members that are missing because others were to get room that the job had.
        self.given = dict.fromkeys(Role, 0)
        #: Role -> members that are missing because the job began without them: nobody granted them in time.
        self.began_without = dict.fromkeys(Role, 0)
        #: What fitted into the room that was seen, and when.
        self._fits: Mapping[Role, int] = {}
        self._seen_s = -1.0

    @abstractmethod
    def _propose(self, plan: Plan) -> None: ...

    @abstractmethod
    def _new_plan(self, change: Change, purpose: Purpose, request_id: str = "") -> Plan: ...

    # ---- what is announced

    def eviction_of(self, name: MemberId) -> Eviction | None:
        """Return what was announced for a member's container; None where nothing was."""
        record = self.members.get(name)
        return self._warned.get(record.container_id) if record is not None else None

    @property
    def servers_warned_s(self) -> float | None:
        """When it was announced last that a server's container goes, where all of them do; else None."""
        servers = self.membership.servers if self._warned and self.membership is not None else ()
        warned = [eviction.warned_s for name in servers if (eviction := self.eviction_of(name)) is not None]
        return max(warned) if warned and len(warned) == len(servers) else None

    def _on_warned(self, event: e.ContainersWarned) -> None:
        for warning in event.warnings:
            record = self._by_container.get(warning.container_id)
            # One that is unknown has ended, or is being given back.
            if record is not None:
                self._note_warning(record, warning)
        driver = self.driver
        coming = [] if driver is None else [n for n in driver.plan.added if self.eviction_of(n) is not None]
        if driver is not None and driver.plan.undecided and coming:
            self._abort(driver.plan, f"the container of {', '.join(coming)} {TAKEN_AWAY}")
        self._settle_withdrawn()

    def _note_warning(self, record: MemberRecord, warning: e.ContainerWarning) -> None:
        deadline_s, known = self._now_s + warning.deadline_s, self._warned.get(record.container_id)
        if known is not None:
            known.warn_again(deadline_s, self._now_s, warning.reason, warning.for_others)
            return
        reason = warning.reason or TAKEN_AWAY
        eviction = Eviction(record.name, record.role, record.container_id, reason, self._now_s, deadline_s)
        eviction.for_others = warning.for_others
        self.evictions.append(eviction)
        self._warned[record.container_id] = eviction
        self._journal(
            {
                "kind": "warned",
                "member": record.name,
                "container": record.container_id,
                "in_s": round(warning.deadline_s, 6),
                "reason": reason,
            }
        )
        driver = self.driver
        if driver is not None and record.name in driver.plan.removed and not driver.plan.undecided:
            eviction.plan_id = driver.plan.plan_id
        expected = self.membership is None or (self.recovery is not None and record.name in self.recovery.newcomers)
        if expected and not record.launched:
            # Nothing runs there yet; the job cannot go on without somebody, so another is asked for.
            del self._by_container[record.container_id]
            self._out.append(e.ReleaseContainer(record.container_id))
            self._request_container(record.name, record.role)

    # ---- what became of it

    def _announced(self, name: MemberId) -> bool:
        # One that has just ended is no member any more.
        return any(eviction.name == name for eviction in self._warned.values())

    def _on_exited(self, event: e.ContainerExited | e.MemberLost) -> None:
        losses = len(self.losses)
        super()._on_exited(event)
        eviction = self._warned.get(event.container_id)
        if eviction is None or event.container_id in self._by_container:
            return
        if len(self.losses) > losses:
            self._end_eviction(eviction, Outcome.LOST)
            if self._managed:
                role = eviction.role
                self.wanted[role] = max(1, self.wanted[role] - 1)
        elif self.driver is not None and eviction.name in self.driver.exited:
            self._end_eviction(eviction, Outcome.DRAINED)
        else:
            self._end_eviction(eviction, Outcome.WITHDRAWN)

    def _settle_withdrawn(self) -> None:
        """Note the end of warnings for containers that were given back before anybody counted on them."""
        for eviction in [v for c, v in self._warned.items() if c not in self._by_container]:
            self._end_eviction(eviction, Outcome.WITHDRAWN)

    def _end_eviction(self, eviction: Eviction, outcome: Outcome) -> None:
        del self._warned[eviction.container_id]
        eviction.end(outcome, self._now_s)
        self.given[eviction.role] += eviction.for_others
        self._journal(
            {
                "kind": "evicted",
                "member": eviction.name,
                "container": eviction.container_id,
                "outcome": str(eviction.outcome),
                "plan": eviction.plan_id,
                "seconds": round(self._now_s - eviction.warned_s, 6),
            }
        )

    # ---- the drain

    @property
    def draining(self) -> bool:
        """True while members must leave that no committed plan has taken away yet: its commit should be near."""
        return bool(self._to_drain())

    def _to_drain(self) -> tuple[MemberId, ...]:
        warned = {eviction.name for eviction in self._warned.values()}
        return next_to_drain(self.membership, warned) if warned and self.membership is not None else ()

    def _drain(self) -> None:
        """Begin to drain what is to be taken away, before whatever else is on its way and not committed."""
        self._settle_withdrawn()
        names = self._to_drain()
        if not names or self._now_s < self._drain_at_s or self.horizon >= self.settings.iterations - 1:
            # With its last iteration granted the job ends soon; who is lost before that is recovered from.
            return
        assert self.membership is not None
        if self.driver is not None:
            if not self.driver.plan.undecided:
                return
            if may_go_on(self.driver.plan, self.membership, names):
                self._note_drain(self.driver.plan)
                return
            self._make_way(self.driver.plan, names)
        plan = self._new_plan(Change(Operation.DRAIN, len(names), names), Purpose.EVICTION)
        self._propose(plan)
        self._note_drain(plan)

    def _make_way(self, plan: Plan, names: tuple[MemberId, ...]) -> None:
        before = self._not_replaced, self._replace_at_s, self._not_drained, self._drain_at_s
        self._abort(plan, f"it made way for {', '.join(names)}, whose containers are to be taken away")
        # What made way has not failed: it is asked for again as soon as it may.
        self._not_replaced, self._replace_at_s, self._not_drained, self._drain_at_s = before

    def _note_drain(self, plan: Plan) -> None:
        for eviction in self._warned.values():
            if eviction.name in plan.removed:
                eviction.plan_id = plan.plan_id

    def _note_own_plan(self, plan: Plan) -> None:
        """Take in how a drain ended, besides what replaces lost members."""
        super()._note_own_plan(plan)
        if plan.purpose is Purpose.EVICTION:
            if plan.phase is Phase.ABORTED:
                self._drain_at_s = self._now_s + DRAIN_AGAIN_S * 2 ** min(self._not_drained, MOST_DRAIN_DOUBLINGS)
                self._not_drained += 1
            else:
                self._not_drained = 0

    # ---- the way back

    @property
    def looks_for_room(self) -> bool:
        """True while room that nobody else wants would let the job grow back."""
        can = self.state is JobState.RUNNING and self.recovery is None and self.driver is None
        return can and any(map(self._left_for_room, Role)) and self._now_s >= self._replace_at_s

    def _on_room(self, event: e.RoomSeen) -> None:
        self._fits, self._seen_s = event.fits, self._now_s

    def _lack(self, role: Role) -> int:
        """Return how many are to be asked for whatever room there is, and note who is not missing any more."""
        lack = super()._lack(role)
        # Whoever has come is in the place of who has been missing for longer.
        self.given[role] = min(self.given[role], lack)
        self.began_without[role] = min(self.began_without[role], lack - self.given[role])
        return lack - self._left_for_room(role)

    def _left_for_room(self, role: Role) -> int:
        """Return how many of a role are missing and asked for only where there is room that nobody wants."""
        return self.given[role] + self.began_without[role]

    def _replace_members(self) -> None:
        super()._replace_members()
        fits = self._fits if self._seen_s == self._now_s else {}
        # One role at a time: they would fit into the same room.
        for role, count in [(r, min(self._left_for_room(r), fits.get(r, 0))) for r in Role]:
            if count > 0:
                self._ask_for(role, count, Purpose.RETURN)
                return

    def _look_at_return(self) -> None:
        """Take back what of the plan in flight, by which members come back, is not granted in time."""
        driver = self.driver
        if driver is None or driver.plan.phase is not Phase.PROPOSED:
            return
        if driver.plan.purpose not in (Purpose.RETURN, Purpose.QUEUE):
            return
        waiting = [self.members[name] for name in driver.plan.added if name not in driver.granted]
        # Free room is not granted all at once: YARN gives a container for each node and heartbeat.
        last_s = max([driver.granted_s, *(record.asked_s for record in waiting)])
        if not waiting or self._now_s - last_s < RETURN_PATIENCE_S:
            return
        if not driver.granted:
            reason = f"not granted within {RETURN_PATIENCE_S:g} s: no room is free, or none in one piece"
            self._abort(driver.plan, reason)
            return
        # Who was granted a container comes: to ask for as many again would be in vain again.
        self._journal({"kind": "smaller", "plan": driver.plan.plan_id, "without": [r.name for r in waiting]})
        for record in waiting:
            self._dismiss(record.name, "the change goes on without it")
        self.driver = driver.with_granted()
        self.driver.note_launched(self._now_s)

    # ---- a worker's room for a server

    def _needs_room(self) -> bool:
        """Return whether the job waits for the container of a server without which it cannot go on."""
        recovery, driver = self.recovery, self.driver
        if recovery is not None:
            return any(recovery.roles[n] is Role.SERVER and not self.members[n].granted for n in recovery.newcomers)
        if driver is None or driver.plan.phase is not Phase.PROPOSED or driver.plan.purpose is not Purpose.EVICTION:
            return False
        return bool(set(driver.plan.coming.servers) - driver.granted)

    @property
    def _gives_room(self) -> Collection[Role]:
        """Roles of which a container may be given up for one of the other."""
        return () if self._managed else self._interchangeable

    def _make_room(self) -> None:
        """Give a worker's container up where a server is waited for that nothing else gives room to."""
        if not self._needs_room():
            self._no_server_s = None
            if not self.draining and self.recovery is None:
                self._rooms = 0
            # Else the worker leaves first; then the server is asked for again, and has as long to be granted.
            return
        if self._no_server_s is None:
            self._no_server_s = self._now_s
        patience_s = ROOM_PATIENCE_S * 2 ** min(self._rooms, MOST_DRAIN_DOUBLINGS)
        if Role.WORKER not in self._gives_room or self.membership is None:
            return
        if self._now_s - self._no_server_s < patience_s:
            return
        workers = [name for name in self.membership.workers if name in self.members]
        name = gives_room(workers, {eviction.name for eviction in self._warned.values()})
        if name is None:
            return
        self._no_server_s, self._rooms = self._now_s, self._rooms + 1
        if self.recovery is not None:
            container_id = self.members[name].container_id
            self.given[Role.WORKER] += bool(self.given[Role.SERVER])
            self._out.append(e.ReleaseContainer(container_id))
            reason = f"gave its container up for a server: none was granted within {patience_s:g} s"
            self._on_exited(e.ContainerExited(container_id, reason, taken=True))
            return
        with suppress(EpsError):
            # The removal has the drain make way, which comes back after it.
            self._accept(Change(Operation.REMOVE_WORKERS, 1, (name,)), Purpose.ROOM)

    # ---- the size

    def _count_size(self, plan: Plan) -> None:
        """Take in what a plan that is released means for the size that is asked for."""
        counts = not plan.purpose.own or (self._managed and plan.purpose is Purpose.EVICTION)
        if plan.purpose is Purpose.ROOM and any(eviction.for_others for eviction in self._warned.values()):
            self.given[Role.WORKER] += 1
        for role in Role:
            self.wanted[role] += counts * (len(plan.coming.of_role(role)) - len(plan.going.of_role(role)))
            self._lack(role)
