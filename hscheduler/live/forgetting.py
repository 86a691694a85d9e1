"""The way out of a journal that cannot be gone on with: what runs of it, and how to begin without it.

As where code of another version wrote it, or decides otherwise, or the disk has damaged it.
"""

from __future__ import annotations

from pathlib import Path

from eps.errors import StorageError
from eps.job.client import Job
from eps.storage.jobdir import list_jobs
from eps.storage.journal import decode_line
from hscheduler.live.job import END_TIMEOUT_S


def tag_of(journal: Path) -> str:
    """Return what the names of a journal's jobs begin with, whichever version wrote it; empty where it is not known."""
    try:
        with journal.open("rb") as file:
            return str(decode_line(file.readline().removesuffix(b"\n")).get("tag", ""))
    except (OSError, ValueError):
        return ""


def running_of(tag: str) -> list[str]:
    """Return the names of the jobs of a journal that run."""
    return [job.name for job in list_jobs() if tag and job.name.startswith(f"sweep-{tag}-") and job.is_running()]


def way_out(journal: Path, error: StorageError) -> StorageError:
    """Return an error that says what is wrong with a journal, which jobs of it run, and what can be done."""
    tag = tag_of(journal)
    running = ", ".join(running_of(tag)) or "none"
    told = f"of its jobs these run: {running}" if tag else "which jobs are its own is not known: eps list shows all"
    return StorageError(
        f"{error}\nThis version cannot go on with the journal, and nothing was done; {told}.\n"
        f"Either the version that wrote it goes on with it, or hscheduler serve --forget --state {journal.parent} ends "
        "these jobs, keeps the journal beside the new one, and begins anew"
    )


def forget(journal: Path) -> str:
    """End the jobs of a journal that run, and move it aside; return what was done, as a sentence.

    A job that was ended has its checkpoints: ``eps resume`` goes on with it, by itself.  Whoever calls this holds the
    journal's directory.  Repeated after it was cut short it goes on.

    Raises
    ------
    EpsError
        A job cannot be ended; the journal is where it was.
    StorageError
        The journal cannot be moved.
    """
    if not journal.exists():
        return f"there is no journal in {journal.parent}: nothing is forgotten"
    tag = tag_of(journal)
    running = running_of(tag)
    for name in running:
        with Job.find(name) as job:
            job.kill("its H-scheduler was told to forget it", END_TIMEOUT_S)
    aside = journal.with_name(f"{journal.stem}-{tag or 'unknown'}{journal.suffix}")
    number = 1
    while aside.exists():
        number += 1
        aside = journal.with_name(f"{journal.stem}-{tag or 'unknown'}-{number}{journal.suffix}")
    try:
        journal.rename(aside)
    except OSError as error:
        raise StorageError(f"{journal}: cannot be moved to {aside}: {error.strerror}") from error
    return f"ended {', '.join(running) or 'no job'}; the journal is kept as {aside}"
