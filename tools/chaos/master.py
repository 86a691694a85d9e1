"""A job master with traps (:mod:`tools.chaos.trap`) and evictions (:mod:`tools.chaos.evictor`).

Inside :func:`chaos_master`, jobs that this process starts use it.  EPS itself has no code for it: a supervisor runs the
entry point that it gets for each role.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from eps.cluster.supervisor.process import MASTER, ContainerContext
from eps.job.entry_points import ENTRY_POINTS
from tools.chaos.evictor import FOLDER, EvictingResourceManager
from tools.chaos.trap import ENVIRONMENT, Traps, parse


@contextmanager
def chaos_master(traps: str = "") -> Iterator[None]:
    """Start jobs with this module's master, and set ``traps`` (:mod:`tools.chaos.trap`)."""
    entry, environment = ENTRY_POINTS[MASTER], os.environ.get(ENVIRONMENT)
    ENTRY_POINTS[MASTER] = f"{__name__}:run"
    os.environ[ENVIRONMENT] = traps
    try:
        yield
    finally:
        ENTRY_POINTS[MASTER] = entry
        if environment is None:
            del os.environ[ENVIRONMENT]
        else:
            os.environ[ENVIRONMENT] = environment


def run(context: ContainerContext) -> int:
    """Run the job master's process."""
    from eps.master import main

    def local(supervisor_fd: int, max_containers: int, adopted: Mapping[str, int]) -> EvictingResourceManager:
        return EvictingResourceManager(context.job_dir / FOLDER, supervisor_fd, max_containers, adopted)

    main.LocalResourceManager = local  # type: ignore[attr-defined, assignment]
    return main.run(context, Traps(parse(os.environ.get(ENVIRONMENT, "")), context.job_dir).look)
