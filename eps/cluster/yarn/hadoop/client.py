"""Submit applications with Hadoop's own ``YarnClient``, and query them with a token."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from typing import Any

from eps.cluster.yarn.hadoop.records import (
    application_of,
    cluster_node_of,
    java_application_id,
    java_launch,
    java_resource,
    java_set,
    record,
)
from eps.cluster.yarn.types import ApplicationReport, ClusterNode, Submission
from eps.errors import ConfigError, DeadlineError
from eps.hadoop.bridge import jarray, java, jbool, jint, jlong
from eps.hadoop.errors import AskRefusedError
from eps.hadoop.session import HadoopSession
from eps.hadoop.tokens import cancel_tokens, obtain_tokens

#: Timeout for YARN to accept or refuse an application.
ACCEPT_S = 60.0
_LOOK_S = 0.1


class HadoopClient:
    """Submits applications for :class:`eps.cluster.yarn.client.YarnClient`, and lists the nodes for a master.

    Parameters
    ----------
    session : HadoopSession

    Raises
    ------
    EpsError
        Hadoop's client cannot start.
    """

    def __init__(self, session: HadoopSession) -> None:
        self.session = session
        with session.errors("YARN's client cannot be started"):
            self._client = java("org.apache.hadoop.yarn.client.api.YarnClient").createYarnClient()
            self._client.init(session.java_conf)
            self._client.start()

    @property
    def user(self) -> str:
        """Name of the user for the cluster."""
        return self.session.user

    def obtain_tokens(self, file_systems: Collection[str] = ()) -> bytes:
        """Return tokens for an application's containers; see :class:`~eps.cluster.yarn.facade.Client`."""
        return obtain_tokens(self.session, file_systems)

    def cancel_tokens(self, tokens: bytes) -> None:
        """Cancel tokens of :meth:`obtain_tokens`."""
        cancel_tokens(self.session, tokens)

    def new_application(self) -> str:
        """Return the id for a new application."""
        with self.session.errors("YARN gives no id for an application"):
            return str(self._client.createApplication().getApplicationSubmissionContext().getApplicationId())

    def submit(self, application_id: str, submission: Submission) -> None:
        """Submit an application, and wait until YARN has accepted it; see :class:`~eps.cluster.yarn.facade.Client`."""
        doing = f"{submission.name} cannot be submitted"
        application = java_application_id(application_id)
        try:
            with self.session.errors(doing):
                self._client.submitApplication(_context(application, submission))
        except AskRefusedError as error:
            raise ConfigError(str(error)) from None
        # Hadoop's client waits as well, but not if the ResourceManager restarts meanwhile.
        end_s = time.monotonic() + ACCEPT_S
        while (report := self.report(application_id)).state in ("NEW", "NEW_SAVING", "SUBMITTED"):
            if time.monotonic() >= end_s:
                raise DeadlineError(
                    f"{doing}: YARN has not accepted it within {ACCEPT_S:g} s; its state is {report.state}"
                )
            time.sleep(_LOOK_S)

    def report(self, application_id: str) -> ApplicationReport:
        """Return YARN's report on an application; see :class:`~eps.cluster.yarn.facade.Client`."""
        application = java_application_id(application_id)
        with self.session.errors(f"YARN does not report the state of {application_id}"):
            return application_of(self._client.getApplicationReport(application))

    def nodes(self, states: Sequence[str] = ("RUNNING",)) -> list[ClusterNode]:
        """Return the nodes in some states, sorted by name."""
        with self.session.errors("YARN's nodes cannot be listed"):
            kind = record("NodeState")
            wanted = jarray(kind, [getattr(kind, state) for state in states])
            found = [cluster_node_of(report) for report in self._client.getNodeReports(wanted)]
            return sorted(found, key=lambda node: node.node)

    def close(self) -> None:
        """Close the connection to the ResourceManager.  Idempotent."""
        with self.session.errors("YARN's client cannot be stopped"):
            self._client.stop()


def _context(application: Any, submission: Submission) -> Any:
    context = record("ApplicationSubmissionContext").newInstance(
        application,
        submission.name,
        submission.queue,
        record("Priority").newInstance(jint(submission.priority)) if submission.priority is not None else None,
        java_launch(submission.launch),
        jbool(False),
        jbool(True),
        jint(submission.max_attempts),
        java_resource(submission.resource),
        submission.application_type,
        jbool(submission.keep_containers),
    )
    context.setApplicationTags(java_set(submission.tags))
    if submission.label:
        # The application's own label expression would also apply to every container without one.
        context.setAMContainerResourceRequest(_ask_for_master(submission))
    if submission.lifetime_s is not None:
        timeouts = java("java.util.HashMap")()
        timeouts.put(record("ApplicationTimeoutType").LIFETIME, jlong(math.ceil(submission.lifetime_s)))
        context.setApplicationTimeouts(timeouts)
    if submission.failures_valid_s is not None:
        context.setAttemptFailuresValidityInterval(jlong(int(1000 * submission.failures_valid_s)))
    return context


def _ask_for_master(submission: Submission) -> Any:
    """Return the request for the application master's container, on a node with its label."""
    kind = record("ResourceRequest")
    return kind.newInstance(
        record("Priority").newInstance(jint(0)),
        kind.ANY,
        java_resource(submission.resource),
        jint(1),
        jbool(True),
        submission.label,
    )
