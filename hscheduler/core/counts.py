"""Jobs ordered by a count, for policies that want those with most, or least, of something.

A cluster has thousands of jobs and few different counts: adding, removing and reading the first few take as long with
many jobs as with few.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator


class Counts:
    """Numbers of jobs by how many of something each has."""

    def __init__(self) -> None:
        #: Count -> numbers, ascending.
        self._buckets: dict[int, list[int]] = {}

    def add(self, count: int, number: int) -> None:
        """Add a job."""
        insort(self._buckets.setdefault(count, []), number)

    def remove(self, count: int, number: int) -> None:
        """Remove a job, which has this count."""
        bucket = self._buckets[count]
        del bucket[bisect_left(bucket, number)]
        if not bucket:
            del self._buckets[count]

    def descending(self) -> Iterator[int]:
        """Yield the jobs with the highest count first; those with the same by arrival."""
        for count in sorted(self._buckets, reverse=True):
            yield from self._buckets[count]

    def ascending(self) -> Iterator[int]:
        """Yield the jobs with the lowest count first; those with the same by arrival."""
        for count in sorted(self._buckets):
            yield from self._buckets[count]
