"""The part of the Docker SDK that EPS uses, with EPS's errors; the only module that talks to the engine.

The engine is found as by the ``docker`` command: ``DOCKER_HOST``, else the default socket.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from eps.errors import ConfigError, ResourceAwayError, ResourceError

#: Address of the engine if DOCKER_HOST is not set.
DEFAULT_HOST = "unix:///var/run/docker.sock"
#: Timeouts of a query and of a launch.  A launch may take longer, since some storage drivers copy the image.
TIMEOUT_S, LAUNCH_TIMEOUT_S = 30, 300
#: Size of the connection pool.
NUM_CONNECTIONS = 12
_START = ": start it, or set DOCKER_HOST to its address"
_ADVICE = {
    errno.ENOENT: _START,
    errno.ECONNREFUSED: _START,
    errno.EACCES: ": use it as root or as a member of the group of its socket, usually docker",
}


class EngineSilentError(ResourceAwayError):
    """The engine does not respond."""


@dataclass(frozen=True, slots=True)
class Found:
    """A container that the engine lists."""

    name: str
    labels: Mapping[str, str]
    #: ``created``, ``running``, ``paused``, ``exited``, ...
    state: str

    @property
    def is_running(self) -> bool:
        """Whether it has a process."""
        return self.state in ("running", "paused")

    @property
    def has_ended(self) -> bool:
        """Whether its process has ended."""
        return self.state in ("exited", "dead")


@dataclass(frozen=True, slots=True)
class Process:
    """The process of a container; the exit code is valid once it has ended."""

    #: Pid on the engine's host; 0 if it is not running.
    pid: int
    exit_code: int
    out_of_memory: bool


def engine_host() -> str:
    """Return the address of the engine."""
    return os.environ.get("DOCKER_HOST") or DEFAULT_HOST


class DockerEngine:
    """A Docker engine; each call responds or raises within its timeout.  Thread-safe.

    Timeouts are :data:`TIMEOUT_S`, and :data:`LAUNCH_TIMEOUT_S` for a launch.

    Raises
    ------
    ConfigError
        The package ``docker`` is missing, or ``DOCKER_HOST`` is invalid.
    EngineSilentError
        There is no engine, or it does not respond.
    """

    def __init__(self) -> None:
        try:
            # Not ``import docker``: any folder of that name would satisfy it, such as the one in the checkout.
            from docker.api import APIClient
            from docker.utils import kwargs_from_env
        except ImportError as error:
            raise ConfigError(
                f"Docker containers need the package docker ({error}): pip install '.[docker]' in EPS's folder"
            ) from None
        with _errors():
            settings = {**kwargs_from_env(), "max_pool_size": NUM_CONNECTIONS}
            self._client = APIClient(**settings, version="auto", timeout=TIMEOUT_S)
            self._slow = APIClient(**settings, version=self._client.api_version, timeout=LAUNCH_TIMEOUT_S)

    def check_image(self, image: str) -> None:
        """Refuse an image that the engine does not have.

        Raises
        ------
        ConfigError
            The engine does not have the image.
        EngineSilentError
            The engine does not respond.
        """
        try:
            with _errors():
                self._client.inspect_image(image)
        except _UnknownError:
            raise ConfigError(
                f"image is {image!r}, but the Docker engine has no such image: build it (docker/README.md), or pull it"
            ) from None

    def launch(self, name: str, config: Mapping[str, Any]) -> int:
        """Create and start a container; return the pid of its process, 0 if it has ended already.

        Idempotent: if the answer to an earlier call was lost, a container of that name is taken for this one.

        Parameters
        ----------
        name : str
        config : mapping
            As the Docker Engine API takes it (``POST /containers/create``).

        Raises
        ------
        ResourceError
            The engine refuses; no container remains.
        EngineSilentError
            The engine does not respond; a container may exist.
        """
        with suppress(_ConflictError), _errors():
            self._slow.create_container_from_config(dict(config), name)
        try:
            with _errors():
                self._slow.start(name)
        except EngineSilentError:
            raise
        except ResourceError:
            self.remove(name)
            raise
        process = self.process(name)
        return 0 if process is None else process.pid

    def process(self, name: str) -> Process | None:
        """Return the process of a container; None if the engine does not know the container."""
        with suppress(_UnknownError), _errors():
            state = self._client.inspect_container(name)["State"]
            return Process(int(state["Pid"]), int(state["ExitCode"]), bool(state["OOMKilled"]))
        return None

    def kill(self, name: str, signal: int) -> None:
        """Send a signal to the process of a container; no effect if it has ended."""
        with suppress(_UnknownError), _errors():
            self._client.kill(name, signal=signal)

    def remove(self, name: str) -> None:
        """Kill and remove a container; no effect if the engine does not know it."""
        with suppress(_UnknownError), _errors():
            self._client.remove_container(name, force=True)

    def find(self, label: str) -> list[Found]:
        """Return the containers with a label, given as ``key`` or ``key=value``, including ended ones."""
        with _errors():
            listed = self._client.containers(all=True, filters={"label": label})
        return [Found(each["Names"][0].removeprefix("/"), each["Labels"], each["State"]) for each in listed]

    def close(self) -> None:
        """Close the connections.  Idempotent."""
        self._client.close()
        self._slow.close()


class _UnknownError(ResourceError):
    """The container or image does not exist, or its state does not allow the call."""


class _ConflictError(_UnknownError):
    """The name is taken, or the container is in another state."""


@contextmanager
def _errors() -> Iterator[None]:
    """Convert the SDK's errors to EPS's."""
    from docker.errors import APIError, DockerException, NotFound
    from requests.exceptions import RequestException

    try:
        yield
    except NotFound as error:
        raise _UnknownError(_first_line(error.explanation)) from error
    except APIError as error:
        if error.response is not None and error.response.status_code == 409:
            raise _ConflictError(_first_line(error.explanation)) from error
        raise ResourceError(_first_line(error.explanation)) from error
    except (DockerException, RequestException, OSError) as error:
        why = _cause(error)
        said = getattr(why, "strerror", None) or _first_line(why)
        advice = _ADVICE.get(getattr(why, "errno", None) or 0, "")
        raise EngineSilentError(f"the Docker engine at {engine_host()} does not answer: {said}{advice}") from error


def _cause(error: BaseException) -> BaseException:
    """Return the innermost cause of an error: the SDK wraps it three times."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def _first_line(what: object) -> str:
    return next(iter(str(what).strip().splitlines()), "no reason given")
