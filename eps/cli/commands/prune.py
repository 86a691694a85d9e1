"""``eps prune``: remove the files of jobs and of sweeps on YARN that have ended."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from eps.cli.commands.jobs import RUNS, Look, chosen_jobs, is_one_of, none_text
from eps.cli.exits import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_OK, exit_code
from eps.data.cache import remove_dataset, unused_datasets
from eps.errors import ConfigError, EpsError, JobExistsError, StorageError
from eps.job.display import ago_text, bytes_text, table
from eps.storage.claims import remove_claimed
from eps.storage.jobdir import JobDir, JobLock, KeepReason, keep_reason, list_jobs, remove_job
from eps.storage.record import Record
from eps.system.home import eps_home, make_home

logger = logging.getLogger(__name__)

#: A prepared data set is kept for so long after a job has taken it, in seconds.
_UNUSED_S = 3600.0
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
#: Names of sweeps begin with this; names of jobs cannot.
SWEEPS = "sweeps/"
_HEADER = ["NAME", "STATE", "STARTED", "SIZE"]


@dataclass(frozen=True)
class Wanted:
    """The options of ``eps prune``."""

    #: Time since the last change, as given and in seconds.
    older_than: str
    age_s: float
    #: Also remove jobs that can be resumed, and results that were not fetched.
    resumable: bool = False
    #: Also remove jobs with damaged files.
    unreadable: bool = False

    @classmethod
    def of(cls, older_than: str, states: Sequence[str], resumable: bool) -> Wanted:
        """Return the options of a command line; errors are those of :func:`_seconds`."""
        return cls(older_than, _seconds(older_than), resumable, "unreadable" in states)


@dataclass(frozen=True)
class Keep:
    """Reasons to keep a job or sweep; both are empty if it may be removed."""

    #: A reason that no option overrides.
    always: str = ""
    #: What would be lost; an option overrides it.
    mostly: str = ""


@dataclass(frozen=True)
class _Ended:
    """A job or sweep that ``eps prune`` considers."""

    #: ``job`` or ``sweep``.
    kind: str
    name: str
    directory: JobDir
    #: One of :data:`eps.cli.commands.jobs.STATES`.
    state: str
    keep: Keep = Keep()
    #: What is damaged in its record; empty if nothing is.
    damage: str = ""
    #: The error because of which the state of a sweep is unknown.
    trouble: EpsError | None = None


def prune(args: argparse.Namespace) -> int:
    """Remove jobs and sweeps that have ended, with their files on a cluster."""
    if not args.dry_run:
        make_home()
    if args.prefix and args.all:
        raise ConfigError(f"--all and the prefix {args.prefix!r} exclude each other: give one of them")
    if not args.prefix and not args.all:
        raise ConfigError("prune needs a prefix of the jobs' names, or --all")
    now_s, wanted = time.time(), Wanted.of(args.older_than, args.state, args.resumable)
    rows = [_HEADER]
    kept: dict[str, list[str]] = {}
    counts, total, codes = {"job": 0, "sweep": 0}, 0, set[int]()
    removed: set[str] = set()
    # With a prefix, running jobs are reported as kept; with --all they are left out.
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
            removed.add(each.name)
            counts[each.kind] += 1
            total += size
    counts["data set"], size = _prune_datasets(removed, now_s - max(wanted.age_s, _UNUSED_S), dry_run=args.dry_run)
    total += size
    for why, names in kept.items():
        others = len(names) - 1
        told = f"{names[0]} and {others} other{'s' if others > 1 else ''} are" if others else f"{names[0]} is"
        print(f"{told} kept: {why}", file=sys.stderr)
    if len(rows) > 1:
        print(table(rows, indent=""))
    if args.prefix and not kept and not any(counts.values()):
        print(none_text(args.prefix, args.state))
        return EXIT_OK
    done = "would be removed" if args.dry_run else "removed"
    print(f"{_counted(counts)} {done}, {bytes_text(total)}; {sum(map(len, kept.values()))} kept")
    # The exit code is "not found" only if unreachable clusters are the only reason: a later retry removes the rest.
    return EXIT_OK if not codes else EXIT_NOT_FOUND if codes == {EXIT_NOT_FOUND} else EXIT_FAILED


def _counted(counts: Mapping[str, int]) -> str:
    """Return the counts in words; sweeps and data sets only if there are any."""
    told = [(kind, count) for kind, count in counts.items() if count or kind == "job"]
    *others, last = [f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in told]
    return f"{', '.join(others)} and {last}" if others else last


def _chosen(prefix: str, states: Sequence[str]) -> Iterator[_Ended]:
    """Yield the jobs, newest first, and then the sweeps whose names begin with ``prefix`` and that are in ``states``.

    Sweeps are included if ``prefix`` is empty or begins with :data:`SWEEPS`.

    Raises
    ------
    ConfigError
        A state is not one of :data:`eps.cli.commands.jobs.STATES`.
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
    """Return why a job or sweep is kept; empty if it is to be removed.

    Parameters
    ----------
    state : str
        One of :data:`eps.cli.commands.jobs.STATES`.
    age_s : float
        Seconds since its directory changed.
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
    return f"{keep.mostly} (to remove: {option})"


def _damage_of(sweep: JobDir) -> str:
    try:
        sweep.record()
    except StorageError as error:
        return str(error)
    return ""


def _unfound(damage: str) -> str:
    """Return what a damaged record makes unknown; empty if the record is not damaged."""
    return damage and f"a damaged record does not say whether it runs or has files on a cluster: {damage}"


def _keep_of(look: Look) -> Keep:
    """Return why to keep a job that does not run."""
    if look.damage:
        return Keep(mostly=_unfound(look.damage))
    if (worth := keep_reason(look.job)) is None:
        return Keep()
    return Keep(
        mostly={
            KeepReason.RESUMABLE: "stopped before the end and can be resumed",
            KeepReason.UNFETCHED: f"results are on the cluster only: `eps fetch {look.job.name}` downloads them",
            KeepReason.UNREADABLE: "may have stopped before its end, but its files are damaged",
        }[worth]
    )


def _settle(each: _Ended) -> None:
    """Query YARN again about a job that YARN did not know before.

    Raises
    ------
    JobExistsError
        The job runs.
    EpsError
        See :func:`eps.job.yarn.remote.settle`.
    """
    job = each.directory
    if each.kind == "job" and not each.damage and job.is_on_yarn() and (end := job.ended()) is not None and end.is_lost:
        from eps.job.yarn.remote import settle

        settle(job)


def _remove(job: JobDir, *, is_damaged: bool) -> None:
    """Remove a job's files on the cluster, then its directory, the only record of them.

    Parameters
    ----------
    job : JobDir
    is_damaged : bool
        Whether a damaged record is accepted; files on the cluster then stay, with a warning.

    Raises
    ------
    ConfigError
        The configuration of the job's cluster is gone.
    EpsError
        See :func:`~eps.storage.jobdir.remove_job`.
    """
    with JobLock(job.lock) as lock:
        try:
            record = job.record()
        except StorageError as error:
            if not is_damaged:
                raise
            logger.warning("%s; if the job has files on a cluster, they stay there", error)
            record = Record()
        # Imported only for jobs on YARN.
        if record.yarn.application is not None:
            from eps.cluster.yarn.application import remove_staged

            remove_staged(job)
        if record.yarn.claim is not None:
            remove_claimed(job)
        remove_job(job, lock)


def _prune_datasets(removed: Collection[str], before_s: float, *, dry_run: bool) -> tuple[int, int]:
    """Remove the prepared data sets that only removed jobs name; return their number and their size in bytes."""
    try:
        runtimes = [job.record().runtime or {} for job in list_jobs() if job.name not in removed]
    except StorageError as error:
        logger.warning("prepared data sets are kept: a damaged record does not say which one its job uses: %s", error)
        return 0, 0
    used = {PurePosixPath(runtime.get("dataset_dir", "")).name for runtime in runtimes}
    sizes = []
    for folder in unused_datasets(eps_home() / "cache", used, before_s):
        size = _size_bytes(folder)
        try:
            if not dry_run:
                remove_dataset(folder)
            sizes.append(size)
        except StorageError as error:
            logger.warning("%s", error)
    return len(sizes), sum(sizes)


def _size_bytes(path: Path) -> int:
    """Return the size of all files in a folder; files that vanish meanwhile count as 0."""
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
        The text is not a duration.
    """
    number, unit = text[:-1], text[-1:]
    if not number.isdecimal() or unit not in _UNITS_S:
        raise ConfigError(f"older-than is {text!r}, but must be a whole number and s, m, h or d, such as 2d")
    return int(number) * _UNITS_S[unit]
