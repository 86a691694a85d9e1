"""Jobs by their names, for the commands that are about one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from eps.errors import JobNotFoundError
from eps.job.client import Job
from eps.storage.jobdir import JobDir, find_job

T = TypeVar("T")


def find_directory(name: str) -> JobDir:
    """Return the directory of a job that runs or has run; where there is none, say what a cluster has of that name.

    The cluster is that of ``HADOOP_CONF_DIR``: without it nobody is asked.

    Raises
    ------
    ConfigError
        No job can have that name.
    JobNotFoundError
        There is none here.
    """
    return _found(name, find_job)


def find(name: str) -> Job:
    """Return a job by name, whoever started it; raises as :func:`find_directory`."""
    return _found(name, Job.find)


def _found(name: str, find: Callable[[str], T]) -> T:
    try:
        return find(name)
    except JobNotFoundError as error:
        if not os.environ.get("HADOOP_CONF_DIR"):
            raise
        from eps.job.yarn.namesakes import namesakes_text

        raise JobNotFoundError(f"{error}{namesakes_text(name)}") from None
