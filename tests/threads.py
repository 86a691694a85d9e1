"""Several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

#: What a test lets threads do takes milliseconds; a busy machine may take long.
TIMEOUT_S = 30.0


def at_once(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Call ``work`` with 0, 1, 2, ... on a thread each; return what each call returned, or the error that it raised."""
    outcomes: list[Any] = [None] * count

    def run(number: int) -> None:
        try:
            outcomes[number] = work(number)
        except Exception as error:
            outcomes[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive(), f"not within {TIMEOUT_S:g} s"
    return outcomes
