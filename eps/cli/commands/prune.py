"""``eps prune``: remove what is kept of jobs that have ended, and of sweeps that were applications of YARN."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from eps.cli.commands.jobs import RUNS, Look, chosen_jobs, is_one_of
from eps.cli.exits import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_OK, exit_code
from eps.errors import ConfigError, EpsError, JobExistsError, StorageError
from eps.job.display import ago_text, bytes_text, table
from eps.storage.claims import remove_claimed
from eps.storage.jobdir import JobDir, JobLock, KeepReason, keep_reason, remove_job
from eps.storage.record import Record
from eps.system.home import make_home

logger = logging.getLogger(__name__)

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
#: How what is no job's name begins.
SWEEPS = "sweeps/"
_HEADER = ["NAME", "STATE", "STARTED", "SIZE"]


@dataclass(frozen=True)
class Wanted:
    """What somebody wants to be removed."""

    #: Whatever changed so long ago, in words and in seconds.
    older_than: str
    age_s: float
    #: Also what something would be lost with.
    resumable: bool = False
    #: Also what is damaged.
    unreadable: bool = False

    @classmethod
    def of(cls, older_than: str, states: Sequence[str], resumable: bool) -> Wanted:
        """Return what options say; raises as :func:`_seconds`."""
        return cls(older_than, _seconds(older_than), resumable, "unreadable" in states)


@dataclass(frozen=True)
class Keep:
    """Why something is to be kept; empty where it need not be."""

    #: Whatever somebody wants.
    always: str = ""
    #: Unless somebody wants it nevertheless: what would be lost.
    mostly: str = ""


@dataclass(frozen=True)
class _Ended:
    """What may be removed."""

    #: ``job`` or ``sweep``.
    kind: str
    name: str
    directory: JobDir
    #: As of :data:`eps.cli.commands.jobs.STATES`.
    state: str
    keep: Keep = Keep()
    #: What is damaged of its record, as a sentence; empty where nothing is.
    damage: str = ""
    #: Of a sweep: why nobody knows how it is.
    trouble: EpsError | None = None


def prune(args: argparse.Namespace) -> int:
    """Remove jobs and sweeps that have ended, with what they have on a cluster."""
    if not args.dry_run:
        make_home()
    if args.prefix and args.all:
        raise ConfigError(f"all is for jobs of any name, and {args.prefix!r} for some: give one of them")
    if not args.prefix and not args.all:
        raise ConfigError("nothing says which jobs: give what their names begin with, or --all")
    now_s, wanted = time.time(), Wanted.of(args.older_than, args.state, args.resumable)
    rows = [_HEADER]
    kept: dict[str, list[str]] = {}
    counts, total, codes = {"job": 0, "sweep": 0}, 0, set[int]()
    # Who names some is told of those that run; of all jobs they are not meant.
    for each in _chosen(args.prefix, args.state or (["ended", RUNS] if args.prefix else ["ended"])):
        row, size = [each.name, each.state, ago_text(each.directory.started_s())], _size_bytes(each.directory.path)
        try:
            why = kept_for(each.state, now_s - each.directory.changed_s(), each.keep, wanted)
            if not why and each.trouble is not None:
                raise each.trouble
            if not why and not args.dry_run:
                _settle(each)
                _remove(each.directory, is_damaged=each.state == "unreadable")
        except JobExistsError:
            why = RUNS
        except EpsError as error:
            why = str(error)
            codes.add(exit_code(error))
        if why:
            kept.setdefault(why, []).append(each.name)
        else:
            rows.append([*row, bytes_text(size)])
            counts[each.kind] += 1
            total += size
    for why, names in kept.items():
        others = len(names) - 1
        told = f"{names[0]} and {others} other{'s' if others > 1 else ''} are" if others else f"{names[0]} is"
        print(f"{told} kept: {why}", file=sys.stderr)
    if len(rows) > 1:
        print(table(rows, indent=""))
    done = "would be removed" if args.dry_run else "removed"
    print(f"{_counted(counts)} {done}, {bytes_text(total)}; {sum(map(len, kept.values()))} kept")
    # Where nothing else hinders them, another try when the cluster is there removes all.
    return EXIT_OK if not codes else EXIT_NOT_FOUND if codes == {EXIT_NOT_FOUND} else EXIT_FAILED


def _counted(counts: Mapping[str, int]) -> str:
    """Return how many there are, in words; sweeps only where there are any."""
    told = [(kind, count) for kind, count in counts.items() if count or kind == "job"]
    return " and ".join(f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in told)


def _chosen(prefix: str, states: Sequence[str]) -> Iterator[_Ended]:
    """Yield jobs, the newest first, and then sweeps, by the beginning of their names and by how they are.

    Sweeps are meant where no names are given, or such as no job can have.

    Raises
    ------
    ConfigError
        A state is none.
    """
    for look in chosen_jobs(prefix, states):
        yield _Ended("job", look.job.name, look.job, look.state, _keep_of(look), look.damage)
    if prefix and not prefix.startswith(SWEEPS):
        return
    from eps.job.yarn.sweeps import list_sweeps, name_of_sweep, state_of_sweep

    for sweep in list_sweeps():
        name = name_of_sweep(sweep)
        if not name.startswith(prefix):
            continue
        try:
            found = state_of_sweep(sweep)
            each = _Ended("sweep", name, sweep, found.state, Keep(mostly=found.keep))
        except EpsError as error:
            damage = _damage_of(sweep)
            keep = Keep(mostly=_unfound(damage))
            each = _Ended("sweep", name, sweep, "unreadable", keep, damage, None if damage else error)
        if is_one_of(each.state, states):
            yield each


def kept_for(state: str, age_s: float, keep: Keep, wanted: Wanted) -> str:
    """Return why something is not to be removed; empty where it is.

    Parameters
    ----------
    state : str
        As of :data:`eps.cli.commands.jobs.STATES`.
    age_s : float
        So long ago its directory changed, in seconds.
    keep : Keep
    wanted : Wanted
    """
    if state == RUNS:
        return RUNS
    if age_s < wanted.age_s:
        return f"ended less than {wanted.older_than} ago (--older-than)"
    if keep.always:
        return keep.always
    if not keep.mostly or wanted.resumable or (state == "unreadable" and wanted.unreadable):
        return ""
    option = "--state unreadable" if state == "unreadable" else "--resumable"
    return f"{keep.mostly} ({option} removes such ones, too)"


def _damage_of(sweep: JobDir) -> str:
    try:
        sweep.record()
    except StorageError as error:
        return str(error)
    return ""


def _unfound(damage: str) -> str:
    """Return what cannot be found out any more where a record is damaged; empty where it is not."""
    return damage and f"what it may have on a cluster, and whether it runs there, cannot be found: {damage}"


def _keep_of(look: Look) -> Keep:
    """Return why a job that does not run is to be kept."""
    if look.damage:
        return Keep(mostly=_unfound(look.damage))
    if (worth := keep_reason(look.job)) is None:
        return Keep()
    return Keep(
        mostly={
            KeepReason.RESUMABLE: "stopped before the end and can be resumed",
            KeepReason.UNFETCHED: f"what it has left on its cluster was not fetched: `eps fetch {look.job.name}` does",
            KeepReason.UNREADABLE: "may have stopped before its end, but its files are damaged",
        }[worth]
    )


def _settle(each: _Ended) -> None:
    """Ask YARN once more after a job that it had forgotten: one that runs after all is kept.

    Raises as :func:`eps.job.yarn.remote.settle`: JobExistsError where it runs.
    """
    job = each.directory
    if each.kind == "job" and not each.damage and job.is_on_yarn() and (end := job.ended()) is not None and end.is_lost:
        from eps.job.yarn.remote import settle

        settle(job)


def _remove(job: JobDir, *, is_damaged: bool) -> None:
    """Remove a directory, after what it has on a cluster, of which nothing else knows.

    Raises as :func:`~eps.storage.jobdir.remove_job`, and ConfigError where nothing leads to the cluster any more.

    Parameters
    ----------
    job : JobDir
    is_damaged : bool
        Where its record is damaged, what it has on a cluster stays, and the log says so.
    """
    with JobLock(job.lock) as lock:
        try:
            record = job.record()
        except StorageError as error:
            if not is_damaged:
                raise
            logger.warning("%s; what the job has on a cluster stays there", error)
            record = Record()
        # Who prunes jobs of one machine needs nothing of YARN's.
        if record.yarn.application is not None:
            from eps.cluster.yarn.application import remove_staged

            remove_staged(job)
        if record.yarn.claim is not None:
            remove_claimed(job)
        remove_job(job, lock)


def _size_bytes(path: Path) -> int:
    """Return how much the files of a folder hold; what goes meanwhile counts as nothing."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def _seconds(text: str) -> float:
    """Return a duration of the command line in seconds.

    Raises
    ------
    ConfigError
        It is none.
    """
    number, unit = text[:-1], text[-1:]
    if not number.isdecimal() or unit not in _UNITS_S:
        raise ConfigError(f"older-than is {text!r}, but must be a whole number and s, m, h or d, as in 2d")
    return int(number) * _UNITS_S[unit]
