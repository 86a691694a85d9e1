"""What must always be true of a job master; tests and the simulator ask after every step.  L0.

Source: design section 3.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from eps.core.events import ENDED_STATES, JobState
from eps.core.reconfig import ENDED, Phase

if TYPE_CHECKING:
    from eps.core.master_state import MasterState


def check_master(state: MasterState) -> None:
    """Assert the invariants of a job master.

    Raises
    ------
    AssertionError
        One does not hold.
    """
    if state.membership is None:
        return
    state.membership.validate()
    assert [v.version for v in state.memberships] == list(range(1, len(state.memberships) + 1))
    # One that takes over from lost members holds at once.  Equal where a plan committed before any worker was granted
    # the clock of the plan before: then the later holds.
    for earlier, later in pairwise(state.memberships):
        assert later.takes_over or earlier.from_clock <= later.from_clock, (earlier.version, later.from_clock)
    assert state.memberships[-1] is state.membership
    assert state.membership.from_clock <= max(state.horizon + 1, state.settings.first_clock)
    assert state.horizon <= state.settings.iterations
    if state.undecided and state.state is JobState.RUNNING:
        assert state.horizon <= max(state.settings.first_clock, state.settings.iterations - 2), state.horizon
    if not any(membership.takes_over for membership in state.memberships):
        assert max(state.membership.balance()) <= 1, "loads are within one of each other"
    live = [p for p in state.plans.values() if p.phase not in (*ENDED, Phase.QUEUED)]
    assert len(live) <= 1, "one plan changes the job at a time"
    if state.state not in ENDED_STATES:
        lost = set(state.recovery.lost) if state.recovery is not None else set()
        assert set(state.membership.members) <= set(state.members) | lost, "a member has a container"
