"""Jobs ordered by a count, for policies that look for the jobs with the most or the fewest workers or servers.

A cluster has thousands of jobs and few distinct counts.  The cost of an update, and of reading the first few jobs,
hardly depends on the number of jobs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator


class Counts:
    """Arrival numbers of jobs, grouped by a count."""

    def __init__(self) -> None:
        #: Count -> arrival numbers, ascending.
        self._buckets: dict[int, list[int]] = {}
        self._counts: dict[int, int] = {}

    def put(self, number: int, count: int) -> None:
        """Set the count of a job; adds or moves it."""
        if self._counts.get(number) != count:
            self.drop(number)
            self._counts[number] = count
            insort(self._buckets.setdefault(count, []), number)

    def drop(self, number: int) -> None:
        """Remove a job.  Idempotent."""
        count = self._counts.pop(number, None)
        if count is not None:
            bucket = self._buckets[count]
            del bucket[bisect_left(bucket, number)]
            if not bucket:
                del self._buckets[count]

    def descending(self) -> Iterator[int]:
        """Yield the jobs, the highest count first; ties by arrival."""
        for count in sorted(self._buckets, reverse=True):
            yield from self._buckets[count]

    def ascending(self) -> Iterator[int]:
        """Yield the jobs, the lowest count first; ties by arrival."""
        for count in sorted(self._buckets):
            yield from self._buckets[count]
