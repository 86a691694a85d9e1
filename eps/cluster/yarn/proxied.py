"""Pages of application masters, which only YARN's proxy reads and shows as the application's tracking URL.

Two things admit a request:

* **It comes through the proxy.**  The path begins with a secret of this attempt, which only the tracking URL has.  The
  ResourceManager tells that URL to its proxy, and to users who may view the application; anybody else learns the
  proxy's address only.  Hadoop's own masters admit the proxy's network addresses instead (``AmIpFilter``).  On a
  cluster of one machine these are the addresses of every local process, so that they would admit all of them; a secret
  also needs no setting for a proxy of its own or for several ResourceManagers.
* **It is for the owner, or for whom** ``--acl view=`` **names**, where the cluster knows who asks: with Kerberos, or
  with ``yarn.acl.enable``.  The proxy passes the user that it has authenticated in the cookie ``proxy-user``, and no
  cookie of the client's.  This must be checked here: the proxy only warns a user who opens the page of somebody else.
  Elsewhere YARN asks nobody who they are, and shows the page to all.

Source: Hadoop 3.3 to 3.5, ``WebAppProxyServlet`` (``buildTrackingUrl``, ``PASS_THROUGH_HEADERS``, ``warnUserPage``),
``AmIpFilter``, and ``RMAppImpl.createAndGetApplicationReport`` (``originalTrackingUrl`` is "N/A" without VIEW_APP).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from email.message import Message
from http.cookies import CookieError, SimpleCookie
from urllib.parse import unquote_plus

from eps.hadoop.conf import HadoopConf
from eps.system.text_server import Pages, TextServer

#: Set by a NodeManager: who submitted the application.
OWNER = "USER"
#: In which YARN's proxy says who asks.
PROXY_USER = "proxy-user"
#: What the proxy makes of a page that is not served over HTTPS.
HTTPS_POLICY = "yarn.resourcemanager.application-https.policy"


def viewer_of(conf: HadoopConf, environ: Mapping[str, str]) -> str | None:
    """Return the owner, who is shown an application's pages; None: all whom the proxy lets through; empty: nobody."""
    if conf.get(HTTPS_POLICY) == "STRICT":
        # The proxy shows no page that is served over plain HTTP, but tells whoever asks its address, with the secret.
        return ""
    if conf.wants_kerberos or conf.get_bool("yarn.acl.enable"):
        return environ.get(OWNER, "")
    return None


class ProxiedServer(TextServer):
    """Serves pages to YARN's proxy, as this module says.

    Parameters
    ----------
    host : str
        By which the proxy reaches it.
    pages : mapping
        They link to each other by relative addresses: a browser sees them where the proxy has them.
    viewer : str, optional
        As of :func:`viewer_of`.
    may_view : callable, optional
        Returns whether a user is shown the pages, too, who is not the owner; by default no other is.
    """

    nothing_there = "only YARN's proxy is served here: open the tracking URL that yarn application -status shows"

    def __init__(
        self, host: str, pages: Pages, viewer: str | None, may_view: Callable[[str], bool] = lambda user: False
    ) -> None:
        self._viewer, self._may_view = viewer, may_view
        secret = secrets.token_urlsafe(32)
        super().__init__(host, 0, {f"/{secret}{path}": make for path, make in pages.items()})
        #: The tracking URL; a secret.
        self.url = f"http://{host}:{self.port}/{secret}/"

    def refusal(self, headers: Message) -> str:
        """Return why a request with these headers is not answered; empty if it is."""
        user = _user_of(headers)
        if self._viewer == "":
            return f"shown to nobody: {HTTPS_POLICY} is STRICT, or the application's owner is not known"
        if self._viewer is not None and (not user or (user != self._viewer and not self._may_view(user))):
            return (
                f"shown to the application's owner and to whom its --acl view= names; to YARN's proxy you are "
                f"{user or 'nobody'}"
            )
        return super().refusal(headers)


def _user_of(headers: Message) -> str:
    try:
        found = SimpleCookie(headers.get("Cookie", "")).get(PROXY_USER)
    except CookieError:
        found = None
    return "" if found is None else unquote_plus(found.value)
