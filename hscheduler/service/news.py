"""The latest news of a service, for clients that watch."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

#: News that are kept for clients that come later.
MOST_NEWS = 10_000


@dataclass(frozen=True)
class Item:
    """One sentence."""

    #: Grows with time, also over restarts of the service.
    number: int
    at_s: float
    text: str
    sweeps: frozenset[str]


class NewsBoard:
    """Sentences with numbers; thread-safe."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque(maxlen=MOST_NEWS)
        self._changed = threading.Condition()
        self._last = 0

    def put(self, at_s: float, texts: list[str], sweeps: frozenset[str]) -> None:
        """Add sentences of some sweeps; without any, whoever waits looks up all the same."""
        with self._changed:
            for text in texts:
                # Microseconds: a service that was started again goes on counting where time is.
                self._last = max(self._last + 1, int(at_s * 1e6))
                self._items.append(Item(self._last, at_s, text, sweeps))
            self._changed.notify_all()

    def after(self, number: int, sweep: str, wait_s: float) -> list[Item]:
        """Return what is newer than ``number`` of a sweep (empty: of all), after at most ``wait_s`` seconds for it."""

        def found() -> list[Item]:
            return [item for item in self._items if item.number > number and (not sweep or sweep in item.sweeps)]

        with self._changed:
            items = found()
            if not items:
                self._changed.wait(wait_s)
                items = found()
            return items

    def wait(self, timeout_s: float) -> None:
        """Wait until there may be something new."""
        with self._changed:
            self._changed.wait(timeout_s)
