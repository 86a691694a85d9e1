"""The masters that a job has had, and what each has logged.  Pure.  L0.

A master that cannot log goes on, and what it tells its members is unknown to the next master.  So every order carries
the number of the last logged event, and members say the highest number that they have heard.  A master whose log is
shorter than that must not go on: the job ends, and ``eps resume`` continues it.

Source: a candidate with a shorter log than a voter leads nobody: Raft (Ongaro and Ousterhout 2014, section 5.4.1).
"""

from __future__ import annotations

#: Why a job ends whose log misses records.
MISSING = (
    "the job master cannot go on: records are missing from its log, for {who} has heard of more than they say; nothing "
    "can be restored: eps resume goes on from the latest checkpoint, or the seed"
)


class Masters:
    """Generations of masters and their events."""

    def __init__(self) -> None:
        #: Counts the masters.
        self.generation = 1
        #: Events taken in.
        self.steps = 0
        #: Generation of each master before this one -> the events of which there are records.
        self._logged: dict[int, int] = {}

    def begin(self, generation: int) -> None:
        """Another process is the master from the event on that is being taken in."""
        self._logged[self.generation] = self.steps - 1
        self.generation = generation

    def miss(self, registered_with: int, heard_generation: int, heard_step: int) -> bool:
        """Return whether a member has heard of events that the log does not have.

        Parameters
        ----------
        registered_with : int
            Generation of the master that the member registered with last, as the log says.
        heard_generation, heard_step : int
            Of the last order that the member has heard.
        """
        # A member hears nothing of a master before it has registered there.
        unknown = heard_generation > registered_with
        return unknown or heard_step > self._logged.get(heard_generation, self.steps)
