"""What a job waits for, as a sentence for people.  L0, pure."""

from __future__ import annotations

from collections.abc import Iterable

from eps.core.members import Member

#: What is waited for longer than this is told.
TOLD_S = 1.0


def containers_waited_for(records: Iterable[Member], now_s: float) -> str:
    """Return that these wait for containers, and for how long, as a sentence; empty where none does for long."""
    missing = [record for record in records if now_s - record.asked_s >= TOLD_S]
    if not missing:
        return ""
    count, waited_s = len(missing), now_s - min(record.asked_s for record in missing)
    names = ", ".join(record.name for record in missing)
    return f"waits for {count} container{'s' if count > 1 else ''}, asked for {waited_s:.0f} s ago: {names}"
