"""Pages of application masters, served to YARN's proxy only, which shows them at the application's tracking URL.

A request must meet two conditions:

* **It comes through the proxy.**  The path begins with a secret of this attempt, which only the tracking URL has.  The
  ResourceManager gives that URL to its proxy, and to users who may view the application; other users learn the
  proxy's address only.  Hadoop's own masters admit the proxy's network addresses instead (``AmIpFilter``).  On a
  cluster of one machine every local process has such an address.  A secret also needs no setting for a separate proxy
  or for several ResourceManagers.
* **It is from the owner, or from a user whom** ``--acl view=`` **names**, if the cluster authenticates users: with
  Kerberos, or with ``yarn.acl.enable``.  The proxy passes the authenticated user in the cookie ``proxy-user``, and no
  cookie of the client.  The master must check it: the proxy only warns a user who opens another user's page.
  Other clusters do not authenticate users, and YARN shows the page to all.

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

#: Environment variable in which a NodeManager names the application's owner.
OWNER = "USER"
#: Cookie in which YARN's proxy names the user.
PROXY_USER = "proxy-user"
#: Setting: how the proxy treats a page that is not served over HTTPS.
HTTPS_POLICY = "yarn.resourcemanager.application-https.policy"


def viewer_of(conf: HadoopConf, environ: Mapping[str, str]) -> str | None:
    """Return the owner, who may view the application's pages; None: every user of the proxy may; empty: no user."""
    if conf.get(HTTPS_POLICY) == "STRICT":
        # The proxy refuses a page over plain HTTP, but its error shows the page's address with the secret.
        return ""
    if conf.wants_kerberos or conf.get_bool("yarn.acl.enable"):
        return environ.get(OWNER, "")
    return None


class ProxiedServer(TextServer):
    """Serve pages to YARN's proxy; see the module's docstring.

    Parameters
    ----------
    host : str
        Name by which the proxy reaches this host.
    pages : mapping
        Their links must be relative: a browser sees them below the proxy's address.
    viewer : str, optional
        The result of :func:`viewer_of`.
    may_view : callable, optional
        Returns whether a user other than the owner may view the pages; by default none may.
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
        """Return why a request with these headers is refused; empty if it is not."""
        user = _user_of(headers)
        if self._viewer == "":
            return f"this page is closed: {HTTPS_POLICY} is STRICT, or the application's owner is unknown"
        if self._viewer is not None and (not user or (user != self._viewer and not self._may_view(user))):
            return (
                "only the application's owner and users of its --acl view= may view this page; YARN's proxy knows you "
                f"as {user or 'an unknown user'}"
            )
        return super().refusal(headers)


def _user_of(headers: Message) -> str:
    try:
        found = SimpleCookie(headers.get("Cookie", "")).get(PROXY_USER)
    except CookieError:
        found = None
    return "" if found is None else unquote_plus(found.value)
