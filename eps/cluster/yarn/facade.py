"""What EPS asks of YARN: interfaces over plain values.  Pure.

``eps.cluster.yarn.hadoop`` implements those of an application master with Hadoop's own clients,
:mod:`eps.cluster.yarn.client` that of whoever is outside, who must have no Java, and ``tests/fakes/yarn.py`` a master's
without a cluster.  Calls block until they are answered; every failure is an :class:`~eps.errors.EpsError` whose message
says what to do.
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
        """Say that the application master is there, and where; to be repeated after :class:`NotRegisteredError`."""

    def allocate(
        self,
        asks: Sequence[Ask] = (),
        withdrawn: Sequence[int] = (),
        releases: Sequence[str] = (),
        blacklist: Sequence[str] = (),
        unblacklist: Sequence[str] = (),
        progress: float = 0.0,
    ) -> AllocateResult:
        """Beat, and exchange what is new since the last beat.

        What is given is kept where the call fails, and sent by the next: nothing has to be given twice.

        Parameters
        ----------
        asks : sequence of Ask
            One for each container that is wanted from now on; equal ones have the same number.
        withdrawn : sequence of int
            The number of each ask that is wanted no more; a grant may be on its way.  Harmless where none is asked for.
        releases : sequence of str
            Containers to give back; each ends as :class:`~eps.cluster.yarn.types.Completed`.
        blacklist : sequence of str
            Hosts on which nothing is wanted from now on.
        unblacklist : sequence of str
            Hosts that were given as ``blacklist``, and are wanted again.
        progress : float
            From 0 to 1.

        Raises
        ------
        NotRegisteredError, AttemptEndedError, AskRefusedError
        RpcError
            No answer this time.
        """

    def unregister(self, status: FinalStatus, diagnostics: str = "") -> None:
        """Say that the application has ended: YARN ends what is left of it, and starts no other attempt."""

    def update_tracking_url(self, url: str) -> None:
        """Let the next beat say where the application's page is now."""

    def close(self) -> None:
        """Close the connection to the ResourceManager.  Idempotent."""


class NmClient(Protocol):
    """An application master's side of the NodeManagers, for containers that its ``AmClient`` knows.  Thread-safe."""

    def start(self, container: str, launch: Launch) -> None:
        """Have a container's node start it; the node brings its files first, after this has returned.

        Raises
        ------
        EpsError
            The node cannot be reached, or refuses.
        """

    def stop(self, container: str, node: str) -> None:
        """Have a container's node end it at once, also one of which the ``AmClient`` has heard that it ended.

        Raises
        ------
        PeerUnavailableError, DeadlineError
            The node cannot be reached.
        EpsError
            It does not know the container.
        """

    def status(self, container: str) -> ContainerState:
        """Return what its node says of a container.

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
        """Return the nodes that can be used, by name; or those in other states of ``ALL_STATES``."""


class Client(NodesClient, Protocol):
    """Submit, query and kill applications.  Thread-safe."""

    @property
    def user(self) -> str:
        """Who the caller is to the cluster: the owner of what it submits.

        Raises
        ------
        EpsError
            The cluster does not say.
        """

    def obtain_tokens(self, file_systems: Collection[str] = ()) -> bytes:
        """Return what an application's containers prove with who they are, in Hadoop's format, for its ``Launch``.

        The ResourceManager renews it as long as the application runs, up to the longest life of each token.

        Parameters
        ----------
        file_systems : collection of str
            Those that the application uses, as ``hdfs://lake``; default: the cluster's own.

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
        """Return the id of an application to be submitted."""

    def submit(self, application_id: str, submission: Submission) -> None:
        """Submit an application, and wait until YARN has accepted it.

        Raises
        ------
        EpsError
            The queue is unknown or refuses, the resources are more than a container may have, the ResourceManager
            cannot be reached, the credentials are wrong: the message says which.
        """

    def report(self, application_id: str) -> ApplicationReport:
        """Return what YARN says of an application.

        Raises
        ------
        JobNotFoundError
            It knows none of that id.
        """

    def applications(
        self, application_type: str = "EPS", states: Sequence[str] = (), tags: Sequence[str] = ()
    ) -> list[ApplicationReport]:
        """Return the applications of a type, oldest first: in one of ``states``, with one of ``tags`` (none: any)."""

    def kill(self, application_id: str, diagnostics: str = "") -> None:
        """Have YARN end an application; harmless for one that has ended."""

    def queue(self, name: str) -> QueueReport | None:
        """Return what YARN says of a queue; None where there is none of that name."""

    def close(self) -> None:
        """Close the connection to the ResourceManager.  Idempotent."""
