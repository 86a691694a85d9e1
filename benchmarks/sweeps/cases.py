"""The runs of the benchmark, by part.

A case is one sweep: a system, a stopping rule, a policy or a width, and how trials arrive.  Names are unique within a
part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.sweeps.workload import CONTAINERS, FEW, MANY, Size
from hscheduler.simulator.static_sizes import fixed_sizes

#: Fixed sizes in containers that host a worker and a server.
SIZES = tuple(fixed_sizes(CONTAINERS))
#: Containers of a trial of Ray's, which have the same speed.
WIDTHS = (1, 2, 4, 8, 16)
#: A size that a user asks for who thinks of workers and servers.
ASKED = Size(workers=2, servers=1)
ONE = Size(hosts=1)
#: Of the fixed sizes and widths, so many go on to further repeats: the fastest of the first one.
KEPT = 2


@dataclass(frozen=True)
class Case:
    """One sweep."""

    name: str
    part: str
    trials: int
    #: The stopping rule of EPS's policies; Ray's is always ASHA.
    rule: str
    #: A policy of EPS; empty: Ray Tune.
    policy: str = ""
    size: Size = ONE
    #: Trials arrive one by one.
    arrives: bool = False
    #: Containers of one of Ray's trials, and whether Ray's ResourceChangingScheduler resizes them.
    width: int = 1
    resizes: bool = False
    #: Ray's trials report every ``grace`` iterations, not only at rungs: it resizes at reports.
    often: bool = False

    @property
    def is_ray(self) -> bool:
        """Whether it is a run of Ray Tune."""
        return not self.policy

    @property
    def is_fixed(self) -> bool:
        """Whether it is one of several fixed sizes, or another variant of Ray's: only the fastest are repeated."""
        return self.name.startswith("static-") or (self.is_ray and self.width > 1) or self.often


def static(part: str, trials: int, rule: str, sizes: Sequence[int], *, arrives: bool = False) -> list[Case]:
    """Return the runs with fixed sizes."""
    return [Case(f"static-{n}", part, trials, rule, "static", Size(hosts=n), arrives) for n in sizes]


def halving(part: str, trials: int, sizes: Sequence[int]) -> list[Case]:
    """Return the runs under ``sha``: every policy trains the same iterations."""
    return [
        *static(part, trials, "sha", sizes),
        Case("asked", part, trials, "sha", "static", ASKED),
        Case("rungs", part, trials, "sha", "rungs"),
        Case("kill", part, trials, "sha", "kill"),
        Case("elastic", part, trials, "sha", "elastic"),
        Case("gain", part, trials, "sha", "gain"),
    ]


def against_ray(part: str, trials: int, sizes: Sequence[int]) -> list[Case]:
    """Return the runs under ``asha``, and those of Ray Tune."""
    widths = [width for width in WIDTHS if width == 1 or width in sizes]
    return [
        *(Case(f"ray-{width}", part, trials, "asha", width=width) for width in widths),
        Case("tune-resizing", part, trials, "asha", resizes=True),
        Case("tune-resizing-often", part, trials, "asha", resizes=True, often=True),
        Case("elastic", part, trials, "asha", "elastic"),
        Case("gain", part, trials, "asha", "gain"),
    ]


def arriving(part: str, trials: int, sizes: Sequence[int]) -> list[Case]:
    """Return the runs with trials that arrive one by one."""
    return [
        *static(part, trials, "asha", sizes, arrives=True),
        Case("elastic", part, trials, "asha", "elastic", arrives=True),
        Case("gain", part, trials, "asha", "gain", arrives=True),
    ]


_MAKERS: Mapping[str, tuple[Callable[[str, int, Sequence[int]], list[Case]], int]] = {
    "sha27": (halving, FEW),
    "asha27": (against_ray, FEW),
    "poisson27": (arriving, FEW),
    "sha81": (halving, MANY),
    "asha81": (against_ray, MANY),
    "poisson81": (arriving, MANY),
}
CURVE = "curve"
PARTS = (CURVE, *_MAKERS)


def cases_of(part: str, sizes: Sequence[int] = SIZES) -> list[Case]:
    """Return the runs of a part; none for the curve."""
    if part == CURVE:
        return []
    maker, trials = _MAKERS[part]
    return maker(part, trials, sizes)


def trials_of(part: str) -> int:
    """Return the number of trials of a part that is not the curve."""
    return _MAKERS[part][1]


def to_repeat(cases: Sequence[Case], makespans: Mapping[str, float]) -> list[Case]:
    """Return the runs of a further repeat: of fixed sizes only the fastest, by the makespans of the first repeat."""
    fixed = sorted((makespans[case.name], case.name) for case in cases if case.is_fixed and case.name in makespans)
    kept = {name for _, name in fixed[:KEPT]}
    return [case for case in cases if not case.is_fixed or case.name in kept]
