"""Use HDFS with a delegation token from Hadoop's own client, for hosts without the package requests-kerberos.

A child process with Java obtains the token (``python -m eps.hadoop.delegation``).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from eps.errors import AuthenticationError, StorageDeniedError, StorageError
from eps.hadoop.conf import HadoopConf, addresses_of, environment_configuration
from eps.hadoop.process import HadoopProcess, serve
from eps.hadoop.session import HadoopSession
from eps.hadoop.token_file import hdfs_token, parse_tokens
from eps.hadoop.tokens import file_system_tokens

#: Age at which a token is replaced; by Hadoop's default it expires after a day without renewal.
REFRESH_S = 3600.0


class DelegationAuth:
    """Add a token to every request that has none, for ``requests.Session.auth``.  Thread-safe.

    Parameters
    ----------
    obtain : callable
        Returns a token in the format of :meth:`~eps.hadoop.token_file.HadoopToken.to_url_text`.
    text : str, optional
        First token; empty: call ``obtain`` at the first request.
    """

    def __init__(self, obtain: Callable[[], str], text: str = "") -> None:
        self._obtain = obtain
        self._lock = threading.Lock()
        self._text = text
        self._obtained_s = time.monotonic()

    def __call__(self, request: Any) -> Any:
        """Return the request with a token."""
        # A NameNode's redirect to a DataNode has a token already.
        if "delegation=" not in request.url:
            request.prepare_url(request.url, {"delegation": self._token()})
        return request

    def _token(self) -> str:
        with self._lock:
            if not self._text or time.monotonic() - self._obtained_s > REFRESH_S:
                self._text, self._obtained_s = self._obtain(), time.monotonic()
            return self._text


def delegated_client(urls: Collection[str], name: str, conf: HadoopConf, rest: Mapping[str, Any]) -> Any:
    """Return a client of the package ``hdfs`` that gets its tokens from Hadoop's own client.

    Parameters
    ----------
    urls : collection of str
        URLs of WebHDFS.
    name : str
        The file system, such as ``hdfs://lake``.
    conf : HadoopConf
    rest : mapping
        Other arguments of the client; its ``session`` is changed.

    Raises
    ------
    ConfigError
        Java or Hadoop's jars are missing.
    AuthenticationError
        The user has no valid ticket.
    """
    from hdfs.client import Client

    def obtain() -> str:
        hadoop = HadoopProcess(conf, __name__)
        try:
            return str(hadoop.call("token", name=name))
        finally:
            hadoop.close()

    # Obtain the first token here, so that a missing login is not reported as a fault of HDFS.
    rest["session"].auth = DelegationAuth(obtain, obtain())
    return Client(";".join(urls), **rest)


def answer(order: Mapping[str, Any]) -> str:
    """Return a token for a file system; runs in the process with Java.

    Raises
    ------
    AuthenticationError, StorageDeniedError
        The user has no valid ticket.
    ConfigError
        Java or Hadoop's jars are missing.
    StorageError
        The file system issues no token.
    """
    name = str(order["name"])
    session = HadoopSession(environment_configuration())
    session.require_login()
    try:
        found = parse_tokens(file_system_tokens(session, name), name)
    except AuthenticationError as error:
        raise StorageDeniedError(str(error)) from error
    authority = name.partition("://")[2]
    token = hdfs_token(found, authority, addresses_of(authority))
    if token is None:
        raise StorageError(f"{name} issues no token, although its configuration requires Kerberos")
    return token.to_url_text()


if __name__ == "__main__":
    sys.exit(serve(answer))
