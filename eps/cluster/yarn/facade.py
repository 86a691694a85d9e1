"""Interfaces to YARN over plain values.  Pure.

``eps.cluster.yarn.hadoop`` implements an application master's interfaces with Hadoop's own clients.
:mod:`eps.cluster.yarn.client` implements :class:`Client` for processes outside of YARN, which run no Java.
``tests/fakes/yarn.py`` implements a master's without a cluster.  Calls block until they are answered; every failure is
an :class:`~eps.errors.EpsError` whose message says what to do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from eps.cluster.yarn.types import (
    AllocateResult,
    ApplicationReport,
    Ask,
    ClusterNode,
    ContainerState,
    FinalStatus,
    Launch,
    QueueReport,
    Registration,
    Submission,
)


class AmClient(Protocol):
    """An application master's side of the ResourceManager.  For one thread at a time."""

    def register(self, host: str, port: int, tracking_url: str = "") -> Registration:
        """Register the application master and its address; repeat it after :class:`NotRegisteredError`."""

    def allocate(
        self,
        asks: Sequence[Ask] = (),
        withdrawn: Sequence[int] = (),
        releases: Sequence[str] = (),
        blacklist: Sequence[str] = (),
        unblacklist: Sequence[str] = (),
        progress: float = 0.0,
    ) -> AllocateResult:
        """Send a heartbeat with the changes since the last one, and return YARN's answer.

        If the call fails, the client keeps the changes and sends them with the next heartbeat: pass each only once.

        Parameters
        ----------
        asks : sequence of Ask
            One for each additional container; equal ones have the same number.
        withdrawn : sequence of int
            Number of each withdrawn ask; its grant may be on its way.  Numbers without an open ask are ignored.
        releases : sequence of str
            Containers to release; YARN reports each as :class:`~eps.cluster.yarn.types.Completed`.
        blacklist : sequence of str
            Hosts to avoid from now on.
        unblacklist : sequence of str
            Hosts to avoid no longer.
        progress : float
            From 0 to 1.

        Raises
        ------
        NotRegisteredError, AttemptEndedError, AskRefusedError
        RpcError
            The ResourceManager did not answer.
        """

    def unregister(self, status: FinalStatus, diagnostics: str = "") -> None:
        """Report the end of the application: YARN kills its remaining containers and starts no further attempt."""

    def update_tracking_url(self, url: str) -> None:
        """Report the new URL of the application's page with the next heartbeat."""

    def close(self) -> None:
        """Close the connection to the ResourceManager.  Idempotent."""


class NmClient(Protocol):
    """An application master's side of the NodeManagers, for containers that its ``AmClient`` knows.  Thread-safe."""

    def start(self, container: str, launch: Launch) -> None:
        """Start a container on its node; the node localizes its files after this has returned.

        Raises
        ------
        EpsError
            The node cannot be reached, or refuses.
        """

    def stop(self, container: str, node: str) -> None:
        """Stop a container on its node at once, also if the ``AmClient`` has reported its end.

        Raises
        ------
        PeerUnavailableError, DeadlineError
            The node cannot be reached.
        EpsError
            The node does not know the container.
        """

    def status(self, container: str) -> ContainerState:
        """Return a container's state on its node.

        Raises
        ------
        RpcError
            The node cannot be reached.
        """

    def close(self) -> None:
        """Close the connections to NodeManagers; containers keep running.  Idempotent."""


class NodesClient(Protocol):
    """Query the nodes of the cluster.  Thread-safe."""

    def nodes(self, states: Sequence[str] = ("RUNNING",)) -> list[ClusterNode]:
        """Return the nodes in some states, sorted by name.

        Parameters
        ----------
        states : sequence of str
            Of :data:`~eps.cluster.yarn.types.ALL_STATES`.
        """


class Client(NodesClient, Protocol):
    """Submit, query and kill applications.  Thread-safe."""

    @property
    def user(self) -> str:
        """Name of the user for the cluster, who owns the applications that this client submits.

        Raises
        ------
        EpsError
            The cluster does not say.
        """

    def obtain_tokens(self, file_systems: Collection[str] = ()) -> bytes:
        """Return delegation tokens for an application's containers, in Hadoop's format, for its ``Launch``.

        The ResourceManager renews them while the application runs, up to each token's maximum lifetime.

        Parameters
        ----------
        file_systems : collection of str
            File systems that the application uses, such as ``hdfs://lake``; empty: the cluster's default.

        Returns
        -------
        bytes
            Empty on a cluster without authentication.

        Raises
        ------
        AuthenticationError
            The user has no valid ticket; the message says what to do.
        EpsError
            The cluster does not answer.
        """

    def new_application(self) -> str:
        """Return the id for a new application."""

    def submit(self, application_id: str, submission: Submission) -> None:
        """Submit an application, and wait until YARN has accepted it.

        Raises
        ------
        EpsError
            The queue is unknown or refuses, a container would be too large, the ResourceManager cannot be reached, or
            the credentials are wrong; the message says which.
        """

    def report(self, application_id: str) -> ApplicationReport:
        """Return YARN's report on an application.

        Raises
        ------
        JobNotFoundError
            YARN does not know that id.
        """

    def applications(
        self, application_type: str = "EPS", states: Sequence[str] = (), tags: Sequence[str] = ()
    ) -> list[ApplicationReport]:
        """Return the applications of a type, oldest first.

        Parameters
        ----------
        application_type : str
        states, tags : sequence of str
            Only applications in one of these states, with one of these tags; empty: any.
        """

    def kill(self, application_id: str, diagnostics: str = "") -> None:
        """Kill an application; does nothing if it has ended."""

    def queue(self, name: str) -> QueueReport | None:
        """Return YARN's report on a queue; None if no queue has that name."""

    def close(self) -> None:
        """Close the connection to the ResourceManager.  Idempotent."""
