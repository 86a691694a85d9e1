"""A series that keeps a bounded number of its points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Thinned(Generic[_T]):
    """Keeps every n-th added point and the last one; n doubles when there would be too many.

    Parameters
    ----------
    most : int
        Most points kept, the last one included; at least 2.
    """

    __slots__ = ("_added", "_kept", "_last", "_most", "_stride")

    def __init__(self, most: int) -> None:
        self._most = most
        self._stride = 1
        self._added = 0
        self._kept: list[_T] = []
        self._last: _T | None = None

    def add(self, point: _T) -> None:
        """Add a point at the end."""
        if self._added % self._stride == 0:
            if len(self._kept) == self._most - 1:
                self._kept = self._kept[::2]
                self._stride *= 2
            if self._added % self._stride == 0:
                self._kept.append(point)
        self._added += 1
        self._last = point

    def copy(self) -> Thinned[_T]:
        """Return an independent copy."""
        other: Thinned[_T] = Thinned(self._most)
        other._stride, other._added = self._stride, self._added
        other._kept, other._last = list(self._kept), self._last
        return other

    def mapped(self, function: Callable[[_T], _T]) -> Thinned[_T]:
        """Return a series with ``function`` applied to each point."""
        other = self.copy()
        other._kept = [function(point) for point in self._kept]
        other._last = None if self._last is None else function(self._last)
        return other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thinned) and self.points() == other.points()

    def __repr__(self) -> str:
        return f"Thinned({self.points()!r})"

    @property
    def last(self) -> _T | None:
        """The last point; None if the series is empty."""
        return self._last

    def points(self) -> list[_T]:
        """Return the kept points, including the last one."""
        if self._last is None or (self._added - 1) % self._stride == 0:
            return list(self._kept)
        return [*self._kept, self._last]
