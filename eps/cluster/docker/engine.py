"""The part of the Docker SDK that EPS uses, with our errors: the one place that speaks to the engine.  L2.

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
#: An engine that does not answer one question for so long counts as gone; one that makes a container may have to copy
#: its image (storage driver vfs).
TIMEOUT_S, LAUNCH_TIMEOUT_S = 30, 300
#: Questions at the same time.
MOST_CALLS = 20
_EVENTS = ("die", "oom")
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
    is_running: bool


@dataclass(frozen=True, slots=True)
class Died:
    """The process of a container has ended."""

    labels: Mapping[str, str]
    exit_code: int


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A container wanted more memory than it may have."""

    labels: Mapping[str, str]


def engine_host() -> str:
    """Return where the engine is looked for."""
    return os.environ.get("DOCKER_HOST") or DEFAULT_HOST


def check_sdk() -> None:
    """Refuse Docker where its Python package is missing.

    Raises
    ------
    ConfigError
        It is.
    """
    try:
        # Not ``import docker``: any folder of that name would do for that, as the one of the checkout.
        from docker.api import APIClient

        _ = APIClient
    except ImportError as error:
        raise ConfigError(
            f"containers of Docker need the package docker ({error}): pip install '.[docker]' in EPS's folder"
        ) from None


class DockerEngine:
    """A Docker engine; a call answers or raises within :data:`TIMEOUT_S`, or :data:`LAUNCH_TIMEOUT_S`.  Thread-safe.

    Raises
    ------
    ConfigError
        The package ``docker`` is missing, or ``DOCKER_HOST`` cannot be.
    EngineSilentError
        There is no engine, or it does not answer.
    """

    def __init__(self) -> None:
        check_sdk()
        from docker.api import APIClient
        from docker.utils import kwargs_from_env

        with _errors():
            settings = kwargs_from_env()
            self._client = APIClient(**settings, version="auto", timeout=TIMEOUT_S, max_pool_size=MOST_CALLS)
            version = self._client.api_version
            self._slow = APIClient(**settings, version=version, timeout=LAUNCH_TIMEOUT_S, max_pool_size=MOST_CALLS)

    def check_image(self, image: str) -> None:
        """Refuse an image that the engine does not have.

        Raises
        ------
        ConfigError
            It has not.
        EngineSilentError
            The engine does not answer.
        """
        error = ConfigError(
            f"image is {image!r}, but the Docker engine has no such image: build it (docker/README.md), or pull it"
        )
        with _missing(error), _errors():
            self._client.inspect_image(image)

    def launch(self, name: str, config: Mapping[str, Any]) -> int:
        """Create a container and start it; return its process's pid, 0 where it has ended already.

        It may be tried again after a silence: what was done before counts.

        Parameters
        ----------
        name : str
            Of no other container: one of that name is taken for this one.
        config : mapping
            As the Docker Engine API takes it (``POST /containers/create``).

        Raises
        ------
        ResourceError
            The engine refuses; nothing is left.
        EngineSilentError
            The engine does not answer; there may be a container.
        """
        # Of a try before this one, whose answer was lost.
        with suppress(_ConflictError), _errors():
            self._slow.create_container_from_config(dict(config), name)
        try:
            with _errors():
                self._slow.start(name)
            return self.pid(name)
        except EngineSilentError:
            raise
        except ResourceError:
            self.remove(name)
            raise

    def pid(self, name: str) -> int:
        """Return the pid of a container's process on the engine's host; 0 where there is none."""
        with _nothing_to_do(), _errors():
            return int(self._client.inspect_container(name)["State"]["Pid"])
        return 0

    def exit_code(self, name: str) -> int | None:
        """Return the exit code of a container that has ended; None where it is not known any more."""
        with _nothing_to_do(), _errors():
            state = self._client.inspect_container(name)["State"]
            return None if state["Running"] else int(state["ExitCode"])
        return None

    def stop(self, name: str, grace_s: int) -> None:
        """End a container: SIGTERM, and SIGKILL after ``grace_s`` seconds; harmless for one that has ended."""
        with _nothing_to_do(), _errors():
            self._client.stop(name, timeout=grace_s)

    def kill(self, name: str) -> None:
        """End a container at once; harmless for one that has ended."""
        with _nothing_to_do(), _errors():
            self._client.kill(name)

    def remove(self, name: str) -> None:
        """End a container at once and have the engine forget it; harmless for one that it does not know."""
        with _nothing_to_do(), _errors():
            self._client.remove_container(name, force=True)

    def find(self, label: str) -> list[Found]:
        """Return the containers with a label, given as ``key`` or ``key=value``, those that have ended too."""
        with _errors():
            listed = self._client.containers(all=True, filters={"label": label})
        return [
            Found(each["Names"][0].removeprefix("/"), each["Labels"], each["State"] in ("running", "paused"))
            for each in listed
        ]

    @contextmanager
    def events(self, label: str, since_s: float) -> Iterator[Events]:
        """Listen to what happens to containers with a label, from a moment on, given as seconds since the epoch.

        Raises
        ------
        EngineSilentError
            The engine does not answer.
        """
        with _errors():
            filters = {"type": "container", "label": label, "event": list(_EVENTS)}
            stream = self._client.events(since=f"{since_s:.9f}", filters=filters, decode=True)
        events = Events(stream)
        try:
            yield events
        finally:
            events.close()
            # What the SDK closes is shut down, and stays open until it is collected.
            stream._response.close()

    def close(self) -> None:
        """Let go of the engine; harmless when repeated."""
        self._client.close()
        self._slow.close()


class Events:
    """What happens, as it happens: an iterator that ends where the engine goes away, or at :meth:`close`.

    Attributes
    ----------
    last_s : float
        When the latest event happened by the engine's clock, in seconds since the epoch; 0.0 before the first.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.last_s = 0.0

    def __iter__(self) -> Iterator[Died | OutOfMemory]:
        # Whatever a stream that breaks off raises, it is over.
        with suppress(ResourceError), _errors():
            for event in self._stream:
                self.last_s = event["timeNano"] / 1e9
                labels = dict(event["Actor"]["Attributes"])
                yield OutOfMemory(labels) if event["Action"] == "oom" else Died(labels, int(labels["exitCode"]))

    def close(self) -> None:
        """End the iteration, also from another thread; harmless when repeated."""
        # It may be closed already, by either end.
        with suppress(OSError, AttributeError):
            self._stream.close()


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


class _UnknownError(ResourceError):
    """What is asked for is not there, or not in a state for it."""


class _ConflictError(_UnknownError):
    """It is there, in another state or as somebody else's."""


@contextmanager
def _nothing_to_do() -> Iterator[None]:
    with suppress(_UnknownError):
        yield


@contextmanager
def _missing(instead: Exception) -> Iterator[None]:
    try:
        yield
    except _UnknownError:
        raise instead from None


def _cause(error: BaseException) -> BaseException:
    """Return what was at the bottom of an error: the SDK wraps it three times."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def _first_line(what: object) -> str:
    return next(iter(str(what).strip().splitlines()), "no reason given")
