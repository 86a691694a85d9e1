"""The part of the Docker SDK that EPS uses, with our errors: the one place that speaks to the engine.

The engine is found as the ``docker`` command finds it: by ``DOCKER_HOST``, else at its usual socket.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from eps.errors import ConfigError, ResourceAwayError, ResourceError

#: Where the engine is, if the environment does not say.
DEFAULT_HOST = "unix:///var/run/docker.sock"
#: A question times out after so many seconds.  A launch may take longer: some storage drivers copy the image.
TIMEOUT_S, LAUNCH_TIMEOUT_S = 30, 300
#: Connections that are kept for the next question.
NUM_CONNECTIONS = 12
_START = ": start it, or set DOCKER_HOST to where it is"
_ADVICE = {
    errno.ENOENT: _START,
    errno.ECONNREFUSED: _START,
    errno.EACCES: ": its socket is for root and its group, docker as a rule",
}


class EngineSilentError(ResourceAwayError):
    """The engine does not answer."""


@dataclass(frozen=True, slots=True)
class Found:
    """A container that the engine knows."""

    name: str
    labels: Mapping[str, str]
    #: ``created``, ``running``, ``paused``, ``exited``, ...
    state: str

    @property
    def is_running(self) -> bool:
        """True where it has a process."""
        return self.state in ("running", "paused")

    @property
    def has_ended(self) -> bool:
        """True where it had a process."""
        return self.state in ("exited", "dead")


@dataclass(frozen=True, slots=True)
class Process:
    """The process of a container; its exit code counts once it has ended."""

    #: On the engine's host; 0 where it does not run.
    pid: int
    exit_code: int
    out_of_memory: bool


def engine_host() -> str:
    """Return where the engine is looked for."""
    return os.environ.get("DOCKER_HOST") or DEFAULT_HOST


class DockerEngine:
    """A Docker engine; a call answers or raises within :data:`TIMEOUT_S`, or :data:`LAUNCH_TIMEOUT_S`.  Thread-safe.

    Raises
    ------
    ConfigError
        The package ``docker`` is missing, or ``DOCKER_HOST`` is invalid.
    EngineSilentError
        There is no engine, or it does not answer.
    """

    def __init__(self) -> None:
        try:
            # Not ``import docker``: any folder of that name would do for that, as the one of the checkout.
            from docker.api import APIClient
            from docker.utils import kwargs_from_env
        except ImportError as error:
            raise ConfigError(
                f"containers of Docker need the package docker ({error}): pip install '.[docker]' in EPS's folder"
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
            It has not.
        EngineSilentError
            The engine does not answer.
        """
        try:
            with _errors():
                self._client.inspect_image(image)
        except _UnknownError:
            raise ConfigError(
                f"image is {image!r}, but the Docker engine has no such image: build it (docker/README.md), or pull it"
            ) from None

    def launch(self, name: str, config: Mapping[str, Any]) -> int:
        """Create a container and start it; return its process's pid, 0 where it has ended already.

        Idempotent: a container of that name, left of a call whose answer was lost, is taken for this one.

        Parameters
        ----------
        name : str
        config : mapping
            As the Docker Engine API takes it (``POST /containers/create``).

        Raises
        ------
        ResourceError
            The engine refuses; nothing is left.
        EngineSilentError
            The engine does not answer; there may be a container.
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
        """Return the process of a container; None where the engine does not know the container."""
        with suppress(_UnknownError), _errors():
            state = self._client.inspect_container(name)["State"]
            return Process(int(state["Pid"]), int(state["ExitCode"]), bool(state["OOMKilled"]))
        return None

    def kill(self, name: str, signal: int) -> None:
        """Send the process of a container a signal; harmless where it has ended."""
        with suppress(_UnknownError), _errors():
            self._client.kill(name, signal=signal)

    def remove(self, name: str) -> None:
        """End a container at once and have the engine forget it; harmless for one that it does not know."""
        with suppress(_UnknownError), _errors():
            self._client.remove_container(name, force=True)

    def find(self, label: str) -> list[Found]:
        """Return the containers with a label, given as ``key`` or ``key=value``, those that have ended too."""
        with _errors():
            listed = self._client.containers(all=True, filters={"label": label})
        return [Found(each["Names"][0].removeprefix("/"), each["Labels"], each["State"]) for each in listed]

    def close(self) -> None:
        """Close the connections; harmless when repeated."""
        self._client.close()
        self._slow.close()


class _UnknownError(ResourceError):
    """The container or image is not there, or not in a state for the call."""


class _ConflictError(_UnknownError):
    """The container is in another state, or the name is taken."""


@contextmanager
def _errors() -> Iterator[None]:
    """Raise the SDK's errors as ours."""
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
    """Return what was at the bottom of an error: the SDK wraps it three times."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def _first_line(what: object) -> str:
    return next(iter(str(what).strip().splitlines()), "no reason given")
