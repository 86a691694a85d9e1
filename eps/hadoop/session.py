"""What all clients of one cluster share: the machine, the configuration, and who they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from eps.errors import EpsError, ResourceError
from eps.hadoop.bridge import java, java_errors, place_of, start_jvm
from eps.hadoop.conf import HadoopConf, environment_configuration
from eps.hadoop.kerberos import keytab_of, nobody
from eps.hadoop.token_file import TOKEN_FILE_VARIABLE

#: Whoever waits is told within seconds that nobody answers, and tries again where that makes sense; Hadoop's own
#: clients would try for a quarter of an hour.
SOON = {
    "yarn.resourcemanager.connect.max-wait.ms": "4000",
    "yarn.resourcemanager.connect.retry-interval.ms": "500",
    "yarn.client.nodemanager-connect.max-wait-ms": "8000",
    "yarn.client.nodemanager-connect.retry-interval-ms": "1000",
    "ipc.client.connect.max.retries": "2",
    "ipc.client.connect.retry.interval": "300",
    "ipc.client.connect.max.retries.on.timeouts": "1",
    "ipc.client.connect.timeout": "8000",
    "ipc.client.rpc-timeout.ms": "20000",
    # A record of the job master waits for its DataNodes, and all others behind it.
    "dfs.client.socket-timeout": "10000",
}


class HadoopSession:
    """A cluster, as one user sees it.

    Parameters
    ----------
    conf : HadoopConf, optional
        Default: that of ``HADOOP_CONF_DIR``.
    settings : mapping, optional
        Go before the configuration's.

    Raises
    ------
    ConfigError
        As :func:`~eps.hadoop.bridge.start_jvm`; or the keytab of the environment is none.
    AuthenticationError
        Kerberos does not take the keytab.
    """

    def __init__(self, conf: HadoopConf | None = None, settings: Mapping[str, str] | None = None) -> None:
        found = conf if conf is not None else environment_configuration()
        start_jvm(found)
        self.place = place_of(found)
        with self.errors("Hadoop's configuration cannot be read"):
            self.java_conf = java("org.apache.hadoop.yarn.conf.YarnConfiguration")()
            for name, value in {**SOON, **(settings or {})}.items():
                self.java_conf.set(name, value)
            # Who this process is, is decided once for each machine.
            users = java("org.apache.hadoop.security.UserGroupInformation")
            users.setConfiguration(self.java_conf)
            self.is_secure = bool(users.isSecurityEnabled())
        with self.errors("who you are to the cluster cannot be found out"):
            if self.is_secure:
                _log_in(users)
            self.user = str(users.getCurrentUser().getShortUserName())

    def require_login(self) -> None:
        """Refuse whoever has no proof of who they are, on a cluster that asks for one.

        Raises
        ------
        AuthenticationError
            There is no ticket, no keytab and no token.
        """
        if not self.is_secure:
            return
        with self.errors("who you are to the cluster cannot be found out"):
            user = java("org.apache.hadoop.security.UserGroupInformation").getLoginUser()
            known = bool(user.hasKerberosCredentials()) or bool(user.getCredentials().numberOfTokens())
        if not known:
            raise nobody(os.environ)

    def is_in(self, acl: str, user: str) -> bool:
        """Return whether a user is of those whom an access control list names, or of a group that it names.

        Groups are those that this host's Hadoop finds.
        """
        with self.errors(f"the groups of {user} cannot be looked up"):
            found = java("org.apache.hadoop.security.UserGroupInformation").createRemoteUser(user)
            return bool(java("org.apache.hadoop.security.authorize.AccessControlList")(acl).isUserAllowed(found))

    @contextmanager
    def errors(self, doing: str, otherwise: Callable[[str], EpsError] = ResourceError) -> Iterator[None]:
        """See :func:`~eps.hadoop.bridge.java_errors`."""
        with java_errors(doing, self.place, otherwise):
            yield

    def get(self, name: str, default: str = "") -> str:
        """Return a setting, with Hadoop's own default where there is one."""
        found = self.java_conf.get(name)
        return default if found is None else str(found)


def _log_in(users: Any) -> None:
    """Log in with the keytab of the environment, once in a process; without one the ticket's cache is looked at."""
    keytab = keytab_of(os.environ)
    # A container has tokens, whatever else its environment says.
    if keytab is None or os.environ.get(TOKEN_FILE_VARIABLE) or users.isLoginKeytabBased():
        return
    path, principal = keytab
    users.loginUserFromKeytab(principal, path)
