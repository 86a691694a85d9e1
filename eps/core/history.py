"""What was measured at every complete clock, in columns.  L0, pure.

A job of short iterations completes a hundred clocks a second, and its master keeps them all: the report, the plans'
pauses and every checkpoint are told from them.  An object for each would be 250 bytes; here a clock takes 32, and 8 for
each value of an evaluation.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from eps.errors import StorageError


@dataclass(frozen=True, slots=True)
class ClockRecord:
    """One complete clock.  Sums are taken in split order, so their bits do not depend on who computed what."""

    clock: int
    samples: int
    loss_sum: float
    #: Element-wise sums of the splits' evaluations; empty where the clock was not evaluated.
    evaluation: tuple[float, ...]
    #: When the last split was reported, seconds on the master's clock.
    completed_s: float

    @property
    def loss(self) -> float:
        """Mean loss over the samples of the clock, without penalties."""
        return self.loss_sum / self.samples if self.samples else 0.0


class ClockHistory(Sequence[ClockRecord]):
    """The complete clocks from 0 on, in order: record ``i`` is clock ``i``'s.

    Parameters
    ----------
    records : iterable of ClockRecord
        The first clocks, from 0 on.
    """

    __slots__ = ("_evaluation_ends", "_evaluations", "_loss_sums", "_samples", "completed_s")

    def __init__(self, records: Iterable[ClockRecord] = ()) -> None:
        self._samples = array("q")
        self._loss_sums = array("d")
        #: When each clock was complete, seconds on the master's clock; to be read only.
        self.completed_s = array("d")
        #: The values of all evaluations one after the other, and where those of each clock end.
        self._evaluations = array("d")
        self._evaluation_ends = array("q")
        for record in records:
            self.append(record)

    def append(self, record: ClockRecord) -> None:
        """Add the next clock.

        Raises
        ------
        ValueError
            It is another one.
        """
        if record.clock != len(self):
            raise ValueError(f"the record is of clock {record.clock}, but must be of clock {len(self)}")
        self._samples.append(record.samples)
        self._loss_sums.append(record.loss_sum)
        self.completed_s.append(record.completed_s)
        self._evaluations.extend(record.evaluation)
        self._evaluation_ends.append(len(self._evaluations))

    def truncate(self, clock: int) -> None:
        """Forget ``clock`` and all after it."""
        clock = min(max(0, clock), len(self))
        del self._evaluations[self._evaluations_begin(clock) :]
        for column in (self._samples, self._loss_sums, self.completed_s, self._evaluation_ends):
            del column[clock:]

    def last_evaluated(self) -> ClockRecord | None:
        """Return the last clock that was evaluated; None where none was."""
        for clock in range(len(self) - 1, -1, -1):
            if self._evaluation_ends[clock] != self._evaluations_begin(clock):
                return self[clock]
        return None

    def __len__(self) -> int:
        return len(self._samples)

    @overload
    def __getitem__(self, key: int) -> ClockRecord: ...

    @overload
    def __getitem__(self, key: slice) -> list[ClockRecord]: ...

    def __getitem__(self, key: int | slice) -> ClockRecord | list[ClockRecord]:
        if isinstance(key, slice):
            return [self._record(clock) for clock in range(*key.indices(len(self)))]
        clock = key + len(self) if key < 0 else key
        if not 0 <= clock < len(self):
            raise IndexError(f"clock {key} of {len(self)}")
        return self._record(clock)

    def __iter__(self) -> Iterator[ClockRecord]:
        return map(self._record, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClockHistory) and self.columns() == other.columns()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ClockHistory({self[:]!r})"

    def before(self, clock: int) -> ClockHistory:
        """Return a copy of the clocks before ``clock``: columns are copied, no record is made."""
        end = min(max(0, clock), len(self))
        found = ClockHistory()
        found._samples = self._samples[:end]
        found._loss_sums = self._loss_sums[:end]
        found.completed_s = self.completed_s[:end]
        found._evaluations = self._evaluations[: self._evaluations_begin(end)]
        found._evaluation_ends = self._evaluation_ends[:end]
        return found

    def columns(self) -> list[bytes]:
        """Return the samples, loss sums, times, evaluations and their ends, as bytes in the machine's own order."""
        return [column.tobytes() for column in self._columns()]

    @classmethod
    def from_columns(cls, columns: Iterable[bytes]) -> ClockHistory:
        """Return what :meth:`columns` gave.

        Raises
        ------
        StorageError
            The columns are of different lengths.
        """
        found = cls()
        try:
            for column, data in zip(found._columns(), columns, strict=True):
                column.frombytes(data)
        except ValueError as error:
            raise StorageError(f"a history cannot be read: {error}") from error
        lengths = {len(c) for c in (found._samples, found._loss_sums, found.completed_s, found._evaluation_ends)}
        if len(lengths) != 1 or found._evaluations_begin(len(found)) != len(found._evaluations):
            raise StorageError(f"a history cannot be read: its columns have {sorted(lengths)} clocks")
        return found

    def _columns(self) -> tuple[array[int] | array[float], ...]:
        return self._samples, self._loss_sums, self.completed_s, self._evaluations, self._evaluation_ends

    def _evaluations_begin(self, clock: int) -> int:
        """Return where the values of ``clock`` begin, which may be the one after the last."""
        return self._evaluation_ends[clock - 1] if clock > 0 else 0

    def _record(self, clock: int) -> ClockRecord:
        values = self._evaluations[self._evaluations_begin(clock) : self._evaluation_ends[clock]]
        return ClockRecord(clock, self._samples[clock], self._loss_sums[clock], tuple(values), self.completed_s[clock])
