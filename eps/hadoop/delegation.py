"""HDFS by a token that Hadoop's own client obtains, in a process of its own (``python -m eps.hadoop.delegation``): for
whoever has a ticket and Java, and no package that speaks Kerberos over HTTP.
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

#: A token that nobody renews holds for a day, unless the cluster says otherwise; it costs a process.
REFRESH_S = 3600.0


class DelegationAuth:
    """Puts a token into every request that has none: for ``requests.Session.auth``.  Thread-safe.

    Parameters
    ----------
    obtain : callable
        Returns a token, as :meth:`~eps.hadoop.token_file.HadoopToken.to_url_text` gives it.
    text : str, optional
        The first one, where it was obtained before.
    """

    def __init__(self, obtain: Callable[[], str], text: str = "") -> None:
        self._obtain = obtain
        self._lock = threading.Lock()
        self._text = text
        self._obtained_s = time.monotonic()

    def __call__(self, request: Any) -> Any:
        """Return a request that says who asks."""
        # Where a NameNode sends one to a DataNode it has put a token in.
        if "delegation=" not in request.url:
            request.prepare_url(request.url, {"delegation": self._token()})
        return request

    def _token(self) -> str:
        with self._lock:
            if not self._text or time.monotonic() - self._obtained_s > REFRESH_S:
                self._text, self._obtained_s = self._obtain(), time.monotonic()
            return self._text


def delegated_client(urls: Collection[str], name: str, conf: HadoopConf, rest: Mapping[str, Any]) -> Any:
    """Return a client of the package ``hdfs`` that has its tokens from Hadoop's own client.

    Parameters
    ----------
    urls : collection of str
        Of WebHDFS.
    name : str
        Of the file system, as ``hdfs://lake``.
    conf : HadoopConf
    rest : mapping
        What the client is made with; its session is changed.

    Raises
    ------
    ConfigError
        Java, or Hadoop's jars, are missing.
    AuthenticationError
        Nobody has logged in.
    """
    from hdfs.client import Client

    def obtain() -> str:
        hadoop = HadoopProcess(conf, __name__)
        try:
            return str(hadoop.call("token", name=name))
        finally:
            hadoop.close()

    # At once: who has not logged in is to know that it is not HDFS that is at fault.
    rest["session"].auth = DelegationAuth(obtain, obtain())
    return Client(";".join(urls), **rest)


def answer(order: Mapping[str, Any]) -> str:
    """Return a token for a file system, in the process with Java.

    Raises
    ------
    AuthenticationError, StorageDeniedError
        Nobody has logged in.
    ConfigError
        Java, or Hadoop's jars, are missing.
    StorageError
        The file system gives none.
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
        raise StorageError(f"{name}: gives no token, though the configuration says that it wants Kerberos")
    return token.to_url_text()


if __name__ == "__main__":
    sys.exit(serve(answer))
