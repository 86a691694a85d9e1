"""Which of the two clients of YARN asks a cluster."""

from __future__ import annotations

from eps.cluster.yarn.facade import Client
from eps.errors import ConfigError
from eps.hadoop.conf import NOT_SET, HadoopConf, resourcemanager_addresses, resourcemanager_web_addresses
from eps.spec.job_spec import YARN_CLIENTS

AUTO, JAVA, REST = YARN_CLIENTS


def client_kind(conf: HadoopConf, asked: str = AUTO) -> str:
    """Return ``java`` or ``rest``.

    Where nobody says, Hadoop's own client asks a cluster that wants Kerberos, since tickets and tokens are its trade,
    and the web interfaces any other: they answer before a Java virtual machine has begun.

    Raises
    ------
    ConfigError
        There is no such client.
    """
    if asked not in YARN_CLIENTS:
        raise ConfigError(f"yarn_client is {asked!r}, but must be one of {', '.join(YARN_CLIENTS)}")
    if asked != AUTO:
        return asked
    return JAVA if conf.wants_kerberos else REST


def asked_at(conf: HadoopConf, asked: str = AUTO) -> str:
    """Return where the client that asks a cluster finds its ResourceManagers, for people; raises as above."""
    rest = client_kind(conf, asked) == REST
    return ", ".join(resourcemanager_web_addresses(conf) if rest else resourcemanager_addresses(conf))


def open_client(conf: HadoopConf, asked: str = AUTO) -> Client:
    """Return the client that asks a cluster.

    Parameters
    ----------
    conf : HadoopConf
    asked : str
        As of :func:`client_kind`.

    Raises
    ------
    ConfigError
        There is no such client, a package or Java is missing, or the configuration names no cluster.
    AuthenticationError
        The cluster wants Kerberos, and nobody has logged in.
    """
    if client_kind(conf, asked) == REST:
        from eps.cluster.yarn.rest import RestClient

        return RestClient(conf)
    if not conf.source:
        raise ConfigError(NOT_SET)
    # Java begins only where it is wanted.
    from eps.cluster.yarn.hadoop.client import HadoopClient
    from eps.hadoop.session import HadoopSession

    session = HadoopSession(conf)
    session.require_login()
    return HadoopClient(session)
