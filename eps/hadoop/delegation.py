"""HDFS by a token that Hadoop's own client obtains: for whoever has a ticket and Java, and no package that speaks
Kerberos over HTTP.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from eps.errors import AuthenticationError, StorageDeniedError, StorageError
from eps.hadoop.conf import HadoopConf, addresses_of
from eps.hadoop.session import HadoopSession
from eps.hadoop.token_file import hdfs_token, parse_tokens
from eps.hadoop.tokens import file_system_tokens

#: A token that nobody renews holds for a day, unless the cluster says otherwise; it costs one call.
REFRESH_S = 3600.0


class DelegationAuth:
    """Puts a token into every request that has none: for ``requests.Session.auth``.  Thread-safe.

    Parameters
    ----------
    obtain : callable
        Returns a token, as :meth:`~eps.hadoop.token_file.HadoopToken.to_url_text` gives it.
    """

    def __init__(self, obtain: Callable[[], str]) -> None:
        self._obtain = obtain
        self._lock = threading.Lock()
        self._text = ""
        self._obtained_s = 0.0

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

    session = HadoopSession(conf)
    session.require_login()
    authority = name.partition("://")[2]

    def obtain() -> str:
        try:
            found = parse_tokens(file_system_tokens(session, name), name)
        except AuthenticationError as error:
            raise StorageDeniedError(str(error)) from error
        token = hdfs_token(found, authority, addresses_of(authority))
        if token is None:
            raise StorageError(f"{name}: gives no token, though the configuration says that it wants Kerberos")
        return token.to_url_text()

    rest["session"].auth = DelegationAuth(obtain)
    return Client(";".join(urls), **rest)
