"""``python -m eps.cluster.yarn.container``: a worker or a server of a job in a YARN container.

A NodeManager unpacks the job's files once for all containers of the job on its node.  Each process makes its own job
directory with links to them, and then runs :mod:`eps.cluster.container`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from eps.cluster.supervisor.process import JOB_DIR
from eps.cluster.yarn.shipping import JOB
from eps.errors import StorageError
from eps.storage.jobdir import JobDir
from eps.system.home import DIRECTORY_MODE

#: Name of the process's own job directory in the container's folder.
OWN_FOLDER = "job"


def own_job_dir(folder: Path) -> JobDir:
    """Make the process's own job directory in ``folder``, with links to the job's localized files.

    Raises
    ------
    StorageError
        The directory cannot be created.
    """
    job = JobDir(folder.absolute() / OWN_FOLDER)
    try:
        for path in (job.path, job.logs, job.containers):
            path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        for brought in (folder / JOB).iterdir():
            link = job.path / brought.name
            if not link.is_symlink():
                link.symlink_to(brought.absolute())
    except OSError as error:
        raise StorageError(f"{error.filename}: cannot create the job's directory: {error.strerror}") from error
    return job


def main() -> int:
    """Run the container's process; return an exit code if it cannot start."""
    from eps.cluster.container import CANNOT_START
    from eps.cluster.container import main as run_container

    try:
        os.environ[JOB_DIR] = str(own_job_dir(Path.cwd()).path)
    except StorageError as error:
        print(f"eps.cluster.yarn.container: {error}", file=sys.stderr)
        return CANNOT_START
    return run_container()


if __name__ == "__main__":
    sys.exit(main())
