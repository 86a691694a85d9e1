"""State that all clients of a cluster share: Java virtual machine, configuration and user."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from eps.errors import EpsError, ResourceError
from eps.hadoop.bridge import java, java_errors, place_of, start_jvm
from eps.hadoop.conf import HadoopConf, environment_configuration
from eps.hadoop.kerberos import keytab_of, no_credentials
from eps.hadoop.token_file import TOKEN_FILE_VARIABLE

#: Short timeouts: Hadoop's clients report within seconds that a service does not answer, and EPS retries where that
#: makes sense.  By default they would retry for a quarter of an hour.
TIMEOUTS = {
    "yarn.resourcemanager.connect.max-wait.ms": "4000",
    "yarn.resourcemanager.connect.retry-interval.ms": "500",
    "yarn.client.nodemanager-connect.max-wait-ms": "8000",
    "yarn.client.nodemanager-connect.retry-interval-ms": "1000",
    "ipc.client.connect.max.retries": "2",
    "ipc.client.connect.retry.interval": "300",
    "ipc.client.connect.max.retries.on.timeouts": "1",
    "ipc.client.connect.timeout": "8000",
    "ipc.client.rpc-timeout.ms": "20000",
    # A record of the job master waits for its DataNodes and blocks all later ones.
    "dfs.client.socket-timeout": "10000",
}


class HadoopSession:
    """A user's session with a cluster.

    Parameters
    ----------
    conf : HadoopConf, optional
        Default: that of ``HADOOP_CONF_DIR``.
    settings : mapping, optional
        Override the configuration's.

    Raises
    ------
    ConfigError
        Java cannot be started (:func:`~eps.hadoop.bridge.start_jvm`), or the keytab of the environment is invalid.
    AuthenticationError
        Kerberos refuses the keytab.
    """

    def __init__(self, conf: HadoopConf | None = None, settings: Mapping[str, str] | None = None) -> None:
        found = conf if conf is not None else environment_configuration()
        start_jvm(found)
        self.place = place_of(found)
        with self.errors("Hadoop's configuration cannot be read"):
            self.java_conf = java("org.apache.hadoop.yarn.conf.YarnConfiguration")()
            for name, value in {**TIMEOUTS, **(settings or {})}.items():
                self.java_conf.set(name, value)
            # Hadoop determines the user once for each Java virtual machine.
            users = java("org.apache.hadoop.security.UserGroupInformation")
            users.setConfiguration(self.java_conf)
            self.is_secure = bool(users.isSecurityEnabled())
        with self.errors("your user on the cluster cannot be determined"):
            if self.is_secure:
                _log_in(users)
            self.user = str(users.getCurrentUser().getShortUserName())

    def require_login(self) -> None:
        """Check that the user has credentials if the cluster requires them.

        Raises
        ------
        AuthenticationError
            The cluster requires Kerberos, and there is no ticket, keytab or token.
        """
        if not self.is_secure:
            return
        with self.errors("your user on the cluster cannot be determined"):
            user = java("org.apache.hadoop.security.UserGroupInformation").getLoginUser()
            known = bool(user.hasKerberosCredentials()) or bool(user.getCredentials().numberOfTokens())
        if not known:
            raise no_credentials(os.environ)

    def is_in(self, acl: str, user: str) -> bool:
        """Return whether an access control list names a user, or a group that this host's Hadoop finds for the user."""
        with self.errors(f"the groups of {user} cannot be looked up"):
            found = java("org.apache.hadoop.security.UserGroupInformation").createRemoteUser(user)
            return bool(java("org.apache.hadoop.security.authorize.AccessControlList")(acl).isUserAllowed(found))

    @contextmanager
    def errors(self, doing: str, otherwise: Callable[[str], EpsError] = ResourceError) -> Iterator[None]:
        """See :func:`~eps.hadoop.bridge.java_errors`."""
        with java_errors(doing, self.place, otherwise):
            yield

    def get(self, name: str, default: str = "") -> str:
        """Return a setting; if it is not set, Hadoop's default, else ``default``."""
        found = self.java_conf.get(name)
        return default if found is None else str(found)


def _log_in(users: Any) -> None:
    """Log in with the keytab of the environment, once in a process; without one Hadoop uses the ticket cache."""
    keytab = keytab_of(os.environ)
    # A container uses its tokens, even if its environment names a keytab.
    if keytab is None or os.environ.get(TOKEN_FILE_VARIABLE) or users.isLoginKeytabBased():
        return
    path, principal = keytab
    users.loginUserFromKeytab(principal, path)
