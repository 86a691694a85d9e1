"""What a job's processes wrote last: for whoever asks why it failed, without asking for it.  L3."""

from __future__ import annotations

import re
from pathlib import Path

from eps.cluster.supervisor.process import MASTER
from eps.storage.jobdir import JobDir

#: Lines that are shown, and their longest.
MOST_LINES, MOST_COLUMNS = 12, 300
#: A member's name, in the lines that its process writes, and in the reason of an end.
_SPEAKER = re.compile(rb"\b[WS]\[((?:worker|server)-\d+)\]")
_MEMBER = re.compile(r"\b(?:worker|server)-\d+\b", re.ASCII)
#: A later job master of a job on YARN: the next attempt of the application, with a log of its own.
_LATER_MASTER = re.compile(rf"{MASTER}-(\d+)", re.ASCII)
_HEAD_BYTES = _TAIL_BYTES = 64 * 1024


def member_of(path: Path) -> str | None:
    """Return the member that wrote a container's log; None where it is not known, or where it is no container's."""
    if not path.stem.startswith("container-"):
        return None
    with path.open("rb") as file:
        match = _SPEAKER.search(file.read(_HEAD_BYTES))
    return None if match is None else match.group(1).decode("ascii")


def attempt_of(path: Path) -> int:
    """Return which of a job's masters wrote a log, from 1; 0 where none did."""
    if path.stem == MASTER:
        return 1
    match = _LATER_MASTER.fullmatch(path.stem)
    return 0 if match is None else int(match[1])


def _masters(directory: JobDir) -> list[Path]:
    return [path for path in directory.logs.glob(f"{MASTER}*.log") if attempt_of(path)]


def last_words(directory: JobDir, reason: str) -> list[str]:
    """Return the last lines of the log of whoever is at fault, with a line above them that says whose they are.

    That is the member that the reason of the job's end names first, else the job master, the last of them.  At most
    :data:`MOST_LINES` lines; none where there is no such log.
    """
    named = _MEMBER.search(reason)
    path, who = max(_masters(directory), key=attempt_of, default=directory.log(MASTER)), "the job master"
    if named is not None:
        for found in sorted(directory.logs.glob("container-*.log")):
            if member_of(found) == named.group():
                path, who = found, named.group()
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    lines = [line[:MOST_COLUMNS] for line in text.splitlines()[-MOST_LINES:] if line.strip()]
    return [f"the last lines of the log of {who} ({path}):", *(f"  {line}" for line in lines)] if lines else []
