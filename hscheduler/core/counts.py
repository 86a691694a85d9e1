"""Jobs ordered by a count, for policies that want those with most, or least, of something.

A cluster has thousands of jobs and few different counts: putting, dropping and reading the first few take about as long
with many jobs as with few.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator


class Counts:
    """Numbers of jobs by how many of something each has."""

    def __init__(self) -> None:
        #: Count -> numbers, ascending.
        self._buckets: dict[int, list[int]] = {}
        self._counts: dict[int, int] = {}

    def put(self, number: int, count: int) -> None:
        """Say how many a job has; it may be there already."""
        if self._counts.get(number) != count:
            self.drop(number)
            self._counts[number] = count
            insort(self._buckets.setdefault(count, []), number)

    def drop(self, number: int) -> None:
        """Forget a job; harmless for one that is not there."""
        count = self._counts.pop(number, None)
        if count is not None:
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
