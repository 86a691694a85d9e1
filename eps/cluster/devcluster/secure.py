"""What a cluster that wants Kerberos has beside the others: realm, principals, settings.  Pure.

The realm is Hadoop's own small one (``hadoop-minikdc``), a daemon of the cluster like the rest.  Its principals and
their keys are new each time it starts.

Source: Hadoop, "Hadoop in Secure Mode", and the configuration of its own tests on a MiniKdc.
"""

from __future__ import annotations

from collections.abc import Mapping

from eps.cluster.devcluster.places import Places
from eps.cluster.devcluster.settings import MASTER_ADDRESS

KDC_CLASS = "org.apache.hadoop.minikdc.MiniKdc"
#: It says this when it listens, and every key is written.
KDC_READY = "Standalone MiniKdc Running"
_ORGANISATION, _DOMAIN = "EPS", "DEV"
REALM = f"{_ORGANISATION}.{_DOMAIN}"
#: Every daemon of Hadoop.
SERVICE = f"hadoop/localhost@{REALM}"
#: Every web server that wants to know who asks: browsers and clients name it by what stands in the URL.
WEB = f"HTTP/{MASTER_ADDRESS}@{REALM}"
_LIFETIME_MS = 24 * 3600 * 1000

Values = dict[str, str]


def principal_of(user: str) -> str:
    """Return who a user of the host is to the realm."""
    return f"{user}@{REALM}"


def kdc_words(places: Places, user: str) -> list[str]:
    """Return what the realm's program is told: its folder, its settings, where keys go, and whose."""
    principals = [name.partition("@")[0] for name in (SERVICE, WEB, principal_of(user))]
    return [KDC_CLASS, str(places.kdc), str(places.kdc_properties), str(places.keytab), *principals]


def kdc_properties(port: int) -> str:
    """Return the settings of the realm's program."""
    values = {
        "org.name": _ORGANISATION,
        "org.domain": _DOMAIN,
        "kdc.bind.address": MASTER_ADDRESS,
        "kdc.port": str(port),
        "max.ticket.lifetime": str(_LIFETIME_MS),
        "max.renewable.lifetime": str(7 * _LIFETIME_MS),
    }
    return "".join(f"{name}={value}\n" for name, value in values.items())


def krb5_conf(port: int) -> str:
    """Return what leads Kerberos to the realm: for KRB5_CONFIG."""
    return f"""\
[libdefaults]
    default_realm = {REALM}
    # Over TCP at once: its program does not listen for anything else.
    udp_preference_limit = 1
    dns_lookup_realm = false
    dns_lookup_kdc = false
    dns_canonicalize_hostname = false
    rdns = false
[realms]
    {REALM} = {{
        kdc = {MASTER_ADDRESS}:{port}
    }}
"""


def core_values(places: Places) -> Values:
    """Return what everybody reads."""
    web = "hadoop.http.authentication"
    return {
        "hadoop.security.authentication": "kerberos",
        # Without it a NameNode refuses whoever comes over HTTP with a ticket, too.
        "hadoop.http.filter.initializers": "org.apache.hadoop.security.AuthenticationFilterInitializer",
        f"{web}.type": "kerberos",
        f"{web}.kerberos.principal": WEB,
        f"{web}.kerberos.keytab": str(places.keytab),
        # By which it is seen that the cluster is ready.
        f"{web}.kerberos.endpoint.whitelist": "/jmx",
    }


def hdfs_values(places: Places) -> Values:
    """Return what NameNode, DataNode and clients of HDFS read."""
    keytab = str(places.keytab)
    return {
        "dfs.block.access.token.enable": "true",
        # Ports below 1024, or certificates, are for others than a developer's host.
        "ignore.secure.ports.for.testing": "true",
        "dfs.namenode.kerberos.principal": SERVICE,
        "dfs.namenode.keytab.file": keytab,
        "dfs.datanode.kerberos.principal": SERVICE,
        "dfs.datanode.keytab.file": keytab,
        "dfs.namenode.kerberos.internal.spnego.principal": WEB,
        "dfs.web.authentication.kerberos.principal": WEB,
        "dfs.web.authentication.kerberos.keytab": keytab,
    }


def yarn_values(places: Places) -> Values:
    """Return what ResourceManager, NodeManagers and clients of YARN read."""
    keytab = str(places.keytab)
    return {
        "yarn.resourcemanager.principal": SERVICE,
        "yarn.resourcemanager.keytab": keytab,
        "yarn.resourcemanager.webapp.spnego-principal": WEB,
        "yarn.resourcemanager.webapp.spnego-keytab-file": keytab,
        "yarn.nodemanager.principal": SERVICE,
        "yarn.nodemanager.keytab": keytab,
        # Where files must belong to whom they should, Hadoop reads them with its native library, which no jar has: a
        # NodeManager that collects logs without it ends.
        "yarn.log-aggregation-enable": "false",
        # Each node's own settings name its folder; whoever looks for what containers wrote finds it by this.
        "yarn.nodemanager.log-dirs": f"{places.data}/node-*/logs",
    }


def node_values() -> Values:
    """Return what NodeManagers read in the place of :func:`core_values`: their pages are open."""
    return {"hadoop.http.filter.initializers": "org.apache.hadoop.http.lib.StaticUserWebFilter"}


def client_variables(places: Places) -> Mapping[str, str]:
    """Return what a program needs in its environment to be the host's user in the realm, without a ticket."""
    return {"KRB5_CONFIG": str(places.krb5_conf), "KRB5_CLIENT_KTNAME": str(places.user_keytab)}
