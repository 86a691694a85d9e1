"""Delegation tokens of HDFS: WebHDFS by one that Hadoop's own client obtains, and one that WebHDFS gives.  L2.

Whoever has a ticket, and Java, needs no package that speaks Kerberos over HTTP: a token says who one is as well.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from eps.errors import AuthenticationError, StorageDeniedError, StorageError
from eps.hadoop.conf import HadoopConf
from eps.hadoop.token_file import HA_SERVICE, HDFS_KIND, HadoopToken, hdfs_token, parse_tokens
from eps.storage.webhdfs import addresses_of, connect

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

    from eps.hadoop.session import HadoopSession
    from eps.hadoop.tokens import file_system_tokens

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


def ask_token(authority: str, conf: HadoopConf, environ: Mapping[str, str], renewer: str) -> HadoopToken:
    """Return a token for a file system from its WebHDFS (``GETDELEGATIONTOKEN``), as its own clients know it.

    Parameters
    ----------
    authority : str
        What stands in ``hdfs://AUTHORITY/``.
    conf : HadoopConf
    environ : mapping
    renewer : str
        Principal of who renews it.

    Raises
    ------
    StorageError
        It gives none: the message says why.
    """
    from hdfs.client import _Request

    web = connect("hdfs", authority, conf, environ)
    what = f"{web.name}: gives no token"
    # The package has no name for this operation.
    operation = _Request("GET").to_method("GETDELEGATIONTOKEN")
    answer = web.ask(what, lambda: operation(web.client, "/", renewer=renewer).json()["Token"]["urlString"])
    token = HadoopToken.from_url_text(str(answer), web.name)
    # WebHDFS names it after itself; whoever speaks to the NameNode otherwise looks for these.
    has_twins = conf.get(f"dfs.ha.namenodes.{authority}")
    service = f"{HA_SERVICE}{authority}" if has_twins else next(iter(addresses_of(authority)), authority)
    return dataclasses.replace(token, kind=HDFS_KIND, service=service)


def cancel_token(authority: str, conf: HadoopConf, environ: Mapping[str, str], token: HadoopToken) -> None:
    """Make a token of :func:`ask_token` worth nothing (``CANCELDELEGATIONTOKEN``); parameters as there.

    Raises
    ------
    StorageError
        It cannot be cancelled: the message says why.
    """
    from hdfs.client import _Request

    web = connect("hdfs", authority, conf, environ)
    operation = _Request("PUT").to_method("CANCELDELEGATIONTOKEN")
    text = token.to_url_text()
    web.ask(f"{web.name}: does not cancel a token", lambda: operation(web.client, "/", token=text))


def home_folder(authority: str, conf: HadoopConf, environ: Mapping[str, str]) -> str:
    """Return the path of the user's folder on a file system, as its WebHDFS says.

    Raises
    ------
    StorageError
        It cannot be asked.
    """
    web = connect("hdfs", authority, conf, environ)
    what = f"{web.name}: does not say where your folder is"
    return web.ask(what, lambda: str(web.client._get_home_directory("/").json()["Path"]))
