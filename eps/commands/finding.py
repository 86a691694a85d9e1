"""Jobs by their names, for the commands that are about one."""

from __future__ import annotations

import os

from eps.client import Job
from eps.errors import JobNotFoundError
from eps.home import check_home
from eps.storage.jobdir import JobDir, find_job


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
    try:
        return find_job(name)
    except JobNotFoundError as error:
        if not os.environ.get("HADOOP_CONF_DIR"):
            raise
        from eps.yarn.namesakes import namesakes_text

        raise JobNotFoundError(f"{error}{namesakes_text(name)}") from None


def find(name: str) -> Job:
    """Return a job by name, whoever started it; raises as :func:`find_directory`."""
    check_home(writable=False)
    find_directory(name)
    return Job.find(name)
