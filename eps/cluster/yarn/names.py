"""Which number stands for which request.  Pure.

A container that outlives its job master is found again by the number of the ask that it was granted for, since YARN
keeps that and nothing else of ours.  So the number must follow from the name, for whoever is job master next.
"""

from __future__ import annotations

from typing import Protocol

from eps.errors import ResourceError


class RequestNames(Protocol):
    """A one-to-one map of container ids to numbers, the same for every master of the job."""

    def number(self, container_id: str) -> int:
        """Return the number of a container id, from 1.

        Raises
        ------
        ResourceError
            It has none.
        """

    def name(self, number: int) -> str | None:
        """Return the container id of a number; None where no id has it."""


class NumberedNames:
    """Container ids that end in their number, as job masters make them: ``container-0012`` is 12.

    Parameters
    ----------
    prefix : str
        What comes before the number.
    width : int
        Digits that it has at least.
    """

    def __init__(self, prefix: str = "container-", width: int = 4) -> None:
        self._prefix = prefix
        self._width = width

    def number(self, container_id: str) -> int:
        """See :class:`RequestNames`."""
        digits = container_id.removeprefix(self._prefix)
        if digits.isascii() and digits.isdigit():
            number = int(digits)
            if self.name(number) == container_id:
                return number
        raise ResourceError(
            f"{container_id!r} has no number: container ids are {self._prefix}{'N' * self._width}, from 1"
        )

    def name(self, number: int) -> str | None:
        """See :class:`RequestNames`."""
        return f"{self._prefix}{number:0{self._width}d}" if 0 < number < 1 << 62 else None
