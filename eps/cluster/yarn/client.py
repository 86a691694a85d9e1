"""Submit, query and kill applications from outside of YARN.

Queries go to the ResourceManager's web interface, which answers at once and needs no Java.  Hadoop's own client
submits, because it handles tokens, Kerberos and failover.  It runs in a child process
(:mod:`eps.cluster.yarn.hadoop.process`) from the first submission until :meth:`YarnClient.close`: the user's process
may fork, and a process with a Java virtual machine must not.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import msgspec

from eps.cluster.yarn.rest import TIMEOUT_S, RestClient
from eps.cluster.yarn.types import Submission
from eps.errors import EpsError
from eps.hadoop.conf import HadoopConf
from eps.hadoop.process import HadoopProcess
from eps.hadoop.token_file import CLIENT_TOKEN, parse_tokens

MODULE = "eps.cluster.yarn.hadoop.process"
#: HTTP header for the delegation token that authenticates a request on a cluster with Kerberos.
TOKEN_HEADER = "Hadoop-YARN-Auth-Delegation-Token"
#: Age at which a token is replaced; by Hadoop's default it expires after a day without renewal.
REFRESH_S = 6 * 3600.0


class _TokenAuth:
    """Authenticates requests by a delegation token, for ``requests.Session.auth``."""

    def __init__(self, hadoop: HadoopProcess) -> None:
        self._hadoop = hadoop
        self._packed = self._text = ""
        self._obtained_s = 0.0

    def __call__(self, request: Any) -> Any:
        if not self._text or time.monotonic() - self._obtained_s > REFRESH_S:
            self.cancel()
            self._packed, self._obtained_s = self._hadoop.call("obtain_tokens", file_systems=[]), time.monotonic()
            tokens = parse_tokens(base64.b64decode(self._packed), "the tokens of Hadoop's client")
            self._text = next(token.to_url_text() for token in tokens if token.kind == CLIENT_TOKEN)
        request.headers[TOKEN_HEADER] = self._text
        return request

    def cancel(self) -> None:
        """Cancel the token, which would otherwise be valid for a day."""
        packed, self._packed, self._text = self._packed, "", ""
        if packed:
            with suppress(EpsError):
                self._hadoop.call("cancel_tokens", tokens=packed)


class YarnClient(RestClient):
    """Implements :class:`eps.cluster.yarn.facade.Client`.

    Parameters
    ----------
    conf : HadoopConf
    timeout_s : float
        Timeout for the answer of each ResourceManager.

    Raises
    ------
    ConfigError
        A package is missing, or the configuration names no cluster.
    """

    def __init__(self, conf: HadoopConf, timeout_s: float = TIMEOUT_S) -> None:
        self._hadoop = HadoopProcess(conf, MODULE)
        self._auth = _TokenAuth(self._hadoop) if conf.wants_kerberos else None
        self._user = ""
        super().__init__(conf, timeout_s, self._auth)

    @property
    def user(self) -> str:
        """Name of the user for the cluster."""
        if not self._user:
            self._user = super().user if self._auth is None else str(self._hadoop.call("user"))
        return self._user

    def prepare(self) -> None:
        """Start Hadoop's client early, in parallel with other preparations; raises the errors of :meth:`submit`."""
        self._hadoop.begin()

    def obtain_tokens(self, file_systems: Collection[str] = ()) -> bytes:
        """See :class:`~eps.cluster.yarn.facade.Client`."""
        if self._auth is None:
            return b""
        return base64.b64decode(self._hadoop.call("obtain_tokens", file_systems=list(file_systems)))

    def new_application(self) -> str:
        """See :class:`~eps.cluster.yarn.facade.Client`."""
        return str(self._hadoop.call("new_application"))

    def submit(self, application_id: str, submission: Submission) -> None:
        """See :class:`~eps.cluster.yarn.facade.Client`."""
        self._hadoop.call("submit", application_id=application_id, submission=msgspec.to_builtins(submission))

    def close(self) -> None:
        """See :class:`~eps.cluster.yarn.facade.Client`."""
        if self._auth is not None:
            self._auth.cancel()
        super().close()
        self._hadoop.close()
