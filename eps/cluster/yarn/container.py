"""``python -m eps.cluster.yarn.container``: a worker or a server of a job in a container of YARN.

A NodeManager has unpacked the job's files where other containers of the job on that node see them too; a process
gets a directory of its own that links to them, and goes on as :mod:`eps.cluster.container`.
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

#: Of a process, beside what YARN has put into the container's folder.
OWN_FOLDER = "job"


def own_job_dir(folder: Path) -> JobDir:
    """Return a directory of the job for the process in ``folder``, made with links to what was brought there.

    Raises
    ------
    StorageError
        It cannot be made.
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
        raise StorageError(f"{error.filename}: the job's directory cannot be made: {error.strerror}") from error
    return job


def main() -> int:
    """Run the container's process; return only where it cannot be started."""
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
