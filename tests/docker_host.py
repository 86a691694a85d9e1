"""The Docker engine of this machine, for tests that need a real one; most machines have none."""

from __future__ import annotations

import functools
import gc
import io
import sys
import tarfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import eps
from eps.cluster.docker.container import DockerSettings
from eps.cluster.docker.engine import DockerEngine
from eps.cluster.docker.resources import DockerResourceManager
from eps.errors import EpsError
from eps.storage.jobdir import JobDir

#: An image with nothing in it: containers find this machine's Python and libraries where they are.
NOTHING = "eps-test-nothing"
ROOT = Path(eps.__file__).parents[1]
ENTRIES = dict.fromkeys(("worker", "server", "server+worker"), "tests.fakes.contained:run_member")


@contextmanager
def no_engine() -> Iterator[None]:
    """Let the SDK look for an engine that is not there: it leaves the socket open that it could not connect."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            yield
        finally:
            gc.collect()


@functools.cache
def why_no_docker() -> str:
    """Return why there is no engine to test with; empty where there is one."""
    with no_engine():
        try:
            DockerEngine().close()
            return ""
        except EpsError as error:
            return str(error)


@functools.cache
def image_of_nothing() -> str:
    """Return the name of an image with an empty root, made where it is missing."""
    from docker.api import APIClient
    from docker.utils import kwargs_from_env

    content = io.BytesIO()
    tarfile.open(fileobj=content, mode="w").close()
    client = APIClient(**kwargs_from_env(), version="auto")
    try:
        if not client.images(NOTHING):
            client.import_image_from_data(content.getvalue(), repository=NOTHING)
    finally:
        client.close()
    return NOTHING


def settings(image: str) -> DockerSettings:
    """Return how the containers of a test are: our Python, and a worker that stays until it is ended."""
    wanted = {Path(path) for path in ("/usr", "/bin", "/lib", "/lib64")}
    wanted |= {ROOT, Path(sys.prefix), Path(sys.base_prefix)}
    mounts = tuple(sorted(path for path in wanted if path.exists()))
    env = {"PYTHONPATH": str(ROOT), "EPS_MASTER_ADDRESS": "127.0.0.1:1"}
    return DockerSettings(image, python=sys.executable, mounts=mounts, env=env, grace_s=1.0, entry_points=ENTRIES)


def connect(image: str, job: JobDir, max_containers: int = 0) -> DockerResourceManager:
    """Return a manager over the engine that the environment names."""
    return DockerResourceManager(DockerEngine(), settings(image), job, max_containers)
