"""Delegation tokens of HDFS: WebHDFS by one that Hadoop's own client obtains, and one that WebHDFS gives.  L2.

Whoever has a ticket, and Java, needs no package that speaks Kerberos over HTTP: a token says who one is as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from eps.hadoop.conf import HadoopConf, addresses_of
from eps.hadoop.token_file import HA_SERVICE, HDFS_KIND, HadoopToken
from eps.storage.webhdfs import connect


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
