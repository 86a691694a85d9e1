"""The last lines of the logs of a sweep's trials, where their jobs are on this host."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from eps.errors import EpsError
from eps.job.status import last_log_lines
from eps.storage.jobdir import find_job

#: Most trials whose log a page shows: those that failed, then those that run, then the best.
MOST = 60


def tails(report: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the last lines of the log of at most :data:`MOST` trials, below a heading; without logs that are gone."""
    sign = -1.0 if report.get("direction") == "maximize" else 1.0

    def rank(trial: Mapping[str, Any]) -> tuple[int, float]:
        place = {"failed": 0, "finished": 2, "killed": 3}.get(trial["phase"], 1)
        return place, 0.0 if trial.get("loss") is None else sign * trial["loss"]

    found: dict[str, list[str]] = {}
    for trial in sorted((each for each in report["trials"] if each.get("name")), key=rank)[:MOST]:
        with suppress(EpsError):
            if lines := last_log_lines(find_job(trial["name"]), trial["why"]):
                # The heading names the process and its file; a page may be read elsewhere.
                heading = lines[0].partition(" (")[0]
                found[str(trial["job_id"])] = [heading, *(line.removeprefix("  ") for line in lines[1:])]
    return found
