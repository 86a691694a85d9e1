"""The end of a job on YARN, on the machine of whoever submitted it: what it has left is fetched, its end noted."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from eps.cluster.yarn.application import COPY_BYTES, ENDED_FILE, RESULTS, STATE, papers_of, remove_staged
from eps.cluster.yarn.outcome import word_of
from eps.errors import EpsError, StorageError
from eps.spec.results import deliver_detached
from eps.storage.api import Storage
from eps.storage.atomic import atomic_writer, read_json, write_json_atomic
from eps.storage.claims import remove_claimed
from eps.storage.jobdir import JobDir
from eps.storage.record import End as JobEnd
from eps.storage.record import Phase, YarnEnd

logger = logging.getLogger(__name__)


class End:
    """Fetches what a job has left when it has ended, notes how it ended, and removes what nobody needs any more.

    Parameters
    ----------
    job : JobDir
        Its lock is held by this process.
    shared : Storage or None
        The folder that the job's processes shared; None where it has gone.
    answered : callable
        Called whenever a piece has been fetched.
    tell : callable
        Called with what is fetched from now on, as a sentence.

    Attributes
    ----------
    exit_code : int or None
        The job's; None until all that can be fetched was.
    is_being_noted : bool
        Whether that is here, and nobody knows of it yet.
    """

    def __init__(
        self, job: JobDir, shared: Storage | None, answered: Callable[[], None], tell: Callable[[str], None]
    ) -> None:
        self._job = job
        self._shared = shared
        self._answered = answered
        self._tell = tell
        self.exit_code: int | None = None
        self.is_being_noted = False

    def note(self, found: tuple[str, str, int], *, is_known: bool, progress: float, seen_s: float) -> int:
        """Fetch what the job has left, and note how it ended; return its exit code.

        Parameters
        ----------
        found : tuple
            State, reason and exit code by YARN's word; that of its master, where it has left one, is better.
        is_known : bool
            Whether YARN knows that it has ended.
        progress : float
            How far it was by YARN's word.
        seen_s : float, seconds of Unix time
            When that was; 0 where nobody knows.
        """
        (state, reason, exit_code), is_over, has_begun, unfetched = found, is_known, True, None
        directory = self._job
        try:
            names = self._names()
            word = self._word(names)
            if word is not None:
                (state, reason, exit_code), is_over, is_known = word, True, True
            # One that YARN has refused, or ended before its master began, has taken no other run's place.
            has_begun = word is not None or state == "finished" or self._has_begun()
            if has_begun:
                directory.begin()
            self._fetch(names)
        except StorageError as error:
            is_over = False
            logger.warning("what the job has left cannot be fetched: %s", error)
            unfetched = reason
            again = f"eps status {directory.name} tries again"
            reason = f"{reason or state}; what it has left cannot be fetched: {error}; {again}"
        else:
            if state == "finished" and not directory.model.exists():
                # It may have been removed as what could not be read: its checkpoints are all that is left of it.
                state, exit_code = "failed", 1
                reason = f"it finished, but did not leave its model: eps resume {directory.name} makes it again"
            self._correct_report(state, reason)
        self.is_being_noted, self.exit_code = True, exit_code
        directory.ending_json.unlink(missing_ok=True)
        if not has_begun and (former := self._give_back(is_forgotten=not is_over)) is not None:
            self.exit_code, self.is_being_noted = former.exit_code, False
            logger.info("%s; nothing of it is there: the job is as it was before: %s", reason, former.reason)
            if is_over:
                remove_ended(directory)
            return self.exit_code
        before, ended_s = directory.record().end, round(time.time(), 3)
        if before is not None and before.yarn.unfetched is not None:
            # What is fetched later ended when it did.
            ended_s = before.time_s
        if unfetched is None and (failed := deliver_detached(directory, lambda place: isinstance(place, Path))):
            reason = "; ".join(filter(None, [reason, failed]))
        # Whoever starts one again that YARN has forgotten asks YARN before.
        known = YarnEnd(unfetched, is_forgotten=not is_known and not is_over)
        if not directory.report.exists() and seen_s:
            # No master could tell: what YARN knew of it is the best there is.
            known = replace(known, progress=progress, seen_s=round(seen_s, 3))
        directory.close(JobEnd(state, reason, exit_code, ended_s, yarn=known), os.getpid())
        self.is_being_noted = False
        logger.info("%s: %s", state, reason or "no reason")
        if is_over:
            self._tell("what it has there is removed")
            remove_ended(self._job)
        if state == "failed":
            # Last: nothing is as large, and nothing else needs them.
            self._bring_logs()
        return exit_code

    def _give_back(self, *, is_forgotten: bool) -> JobEnd | None:
        """Make the job end as it had before this run was prepared; None where there was no run before it.

        The run that was to be stays noted: whoever asks after the job finds it.
        """
        record = self._job.record()
        former = None if record.former is None else record.former.end
        if former is not None:
            end = replace(former, yarn=replace(former.yarn, is_forgotten=is_forgotten))
            self._job.note(phase=Phase.ENDED, end=end, former=None, yarn={"waiting": None})
            self._job.master_json.unlink(missing_ok=True)
        return former

    def _has_begun(self) -> bool:
        """Return whether a master of the application has left anything in the folder that they share."""
        return self._shared is not None and any(self._shared.names(folder) for folder in (STATE, RESULTS))

    def _correct_report(self, state: str, reason: str) -> None:
        """Have the report say how the job ended: its master wrote it before anybody could know."""
        try:
            report = read_json(self._job.report) or {}
            if report.get("state", state) != state:
                write_json_atomic(self._job.report, {**report, "state": state, "reason": reason}, sync=False)
        except StorageError as error:
            # How it ended is noted all the same.
            logger.warning("%s", error)

    def _bring_logs(self) -> None:
        """Bring the containers' logs of a job that failed: nobody should have to ask for them."""
        from eps.job.yarn.logs import fetch_logs

        self._tell("the logs of its containers are fetched")
        try:
            fetch_logs(self._job)
        except EpsError as error:
            logger.warning("%s", error)

    def _names(self) -> frozenset[str]:
        """Return the names of what the job has left."""
        if self._shared is None:
            return frozenset()
        self._tell(f"what it has left is fetched from {self._shared.describe(RESULTS)}")
        return frozenset(self._shared.names(RESULTS))

    def _word(self, names: Collection[str]) -> tuple[str, str, int] | None:
        """Return how the job ended by its master's own word: state, reason, exit code; None where it left none."""
        if ENDED_FILE not in names:
            return None
        with self._read(ENDED_FILE) as source:
            return word_of(source.read(), f"{RESULTS}/{ENDED_FILE}")

    def _fetch(self, names: Collection[str]) -> None:
        """Fetch what masters leave; a temporary file, as of one that was lost while it wrote, is none of that."""
        for path in (*papers_of(self._job), self._job.model):
            if path.name not in names:
                continue
            # A model may be larger than what this process should have.
            with self._read(path.name) as source, atomic_writer(path, sync=False) as target:
                while block := source.read(COPY_BYTES):
                    target.write(block)
                    # It answers, and what is here by now is not to be fetched once more.
                    self._answered()

    def _read(self, name: str) -> AbstractContextManager[BinaryIO]:
        assert self._shared is not None
        self._answered()
        return self._shared.read(f"{RESULTS}/{name}")


def remove_ended(job: JobDir) -> None:
    """Remove the folder of a job that has ended, whose lock the caller holds, and checkpoints that nobody needs.

    All that anybody still needs of that folder is here.  A file system that is away is waited for shortly only: the job
    counts as running as long.
    """
    try:
        remove_staged(job)
        end = job.ended()
        if end is not None and end.state == "finished":
            remove_claimed(job)
    except EpsError as error:
        logger.warning("%s: eps status %s tries again", error, job.name)
