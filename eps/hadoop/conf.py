"""Read Hadoop's configuration in ``HADOOP_CONF_DIR``, and the addresses of services from it.

A file is XML: ``<configuration>`` with ``<property>`` elements of ``<name>``, ``<value>`` and perhaps ``<final>``.
A later file overrides an earlier one, unless that marks a value as final.  Values may refer to other values, as in
``${hadoop.tmp.dir}``, and to the environment, as in ``${env.HOME}`` or ``${env.HOME:-/tmp}``.

Hadoop's defaults are in its jars, so callers pass the default of a setting.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

from eps.errors import ConfigError

#: Files of a configuration, in the order in which they are read.
FILES = ("core-site.xml", "hdfs-site.xml", "yarn-site.xml")
#: A ResourceManager reads this file after :data:`FILES`.
SCHEDULER_FILE = "capacity-scheduler.xml"
#: Default port of a NameNode.
NAMENODE_PORT = 8020
#: Default ports of web servers.
NAMENODE_HTTP_PORT, NAMENODE_HTTPS_PORT, RESOURCEMANAGER_HTTP_PORT = 9870, 9871, 8088
#: Advice if no cluster is configured.
_START_ONE = 'eval "$(eps devcluster start)" starts a cluster on this machine and sets it'
NOT_SET = f"HADOOP_CONF_DIR is not set: it must name the folder with the cluster's yarn-site.xml; {_START_ONE}"
_INCLUDE = "{http://www.w3.org/2001/XInclude}include"
_VARIABLE = re.compile(r"\$\{([^{}$\s]+)\}")
#: Hadoop's limit on nested substitutions; further ones stay as they are.
_MAX_SUBSTITUTIONS = 20
#: Hosts of a service that listens on all interfaces.
_ALL_INTERFACES = ("", "0.0.0.0", "::", "[::]")


@dataclass(frozen=True)
class HadoopConf:
    """Settings of a cluster, by name."""

    values: Mapping[str, str] = field(default_factory=dict)
    #: Folder of the files; empty if there are none.
    source: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)

    def get(self, name: str, default: str = "") -> str:
        """Return a value with all references substituted, without blanks around it."""
        text = self.values.get(name, default)
        for _ in range(_MAX_SUBSTITUTIONS):
            filled = _VARIABLE.sub(self._filled, text)
            if filled == text:
                break
            text = filled
        return text.strip()

    def _filled(self, match: re.Match[str]) -> str:
        name = match[1]
        if not name.startswith("env."):
            return self.values.get(name, match[0])
        variable, _, default = name.removeprefix("env.").partition("-")
        return self.environ.get(variable.removesuffix(":")) or default

    def get_list(self, name: str) -> tuple[str, ...]:
        """Return the comma-separated parts of a value; empty if it is not set."""
        return tuple(part.strip() for part in self.get(name).split(",") if part.strip())

    def get_bool(self, name: str, default: bool = False) -> bool:
        """Return a value that is ``true`` or ``false``; any other counts as the default, as in Hadoop."""
        return {"true": True, "false": False}.get(self.get(name).lower(), default)

    @property
    def wants_kerberos(self) -> bool:
        """Whether the cluster requires Kerberos."""
        return self.get("hadoop.security.authentication").lower() == "kerberos"


def parse_configuration(text: str | bytes, where: str, folder: Path | None = None) -> dict[str, tuple[str, bool]]:
    """Return name -> (value, whether it is final) of one file.

    Parameters
    ----------
    text : str or bytes
    where : str
        Name of the file, for messages.
    folder : Path, optional
        Folder of included files; None: includes are ignored.

    Raises
    ------
    ConfigError
        The file is not XML, or no Hadoop configuration.
    """
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ConfigError(f"{where}: is not XML: {error}") from None
    if root.tag != "configuration":
        raise ConfigError(f"{where}: the root element is <{root.tag}>, but must be <configuration>")
    found: dict[str, tuple[str, bool]] = {}
    for child in root:
        if child.tag == _INCLUDE and folder is not None:
            _merge(found, _read(folder / child.get("href", "")))
        elif child.tag == "property":
            name, value = (child.findtext("name") or "").strip(), child.findtext("value")
            if name and value is not None:
                _merge(found, {name: (value, (child.findtext("final") or "").strip().lower() == "true")})
    return found


def _merge(found: dict[str, tuple[str, bool]], more: Mapping[str, tuple[str, bool]]) -> None:
    for name, value in more.items():
        if not found.get(name, ("", False))[1]:
            found[name] = value


def _read(path: Path) -> dict[str, tuple[str, bool]]:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    return parse_configuration(text, str(path), path.parent)


def self_contained(path: Path) -> bytes:
    """Return a configuration file with its included files merged into it, so that it can be used elsewhere.

    Raises
    ------
    ConfigError
        The file or an included one cannot be read, or is no configuration.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    found = parse_configuration(text, str(path), path.parent)
    if ElementTree.fromstring(text).find(_INCLUDE) is None:
        return text
    root = ElementTree.Element("configuration")
    for name, (value, is_final) in found.items():
        entry = ElementTree.SubElement(root, "property")
        for tag, content in (("name", name), ("value", value), *([("final", "true")] if is_final else [])):
            ElementTree.SubElement(entry, tag).text = content
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def read_configuration(
    folder: Path, environ: Mapping[str, str] | None = None, files: Sequence[str] = FILES
) -> HadoopConf:
    """Return the merged settings of a folder's files; missing files are skipped.

    Parameters
    ----------
    folder : Path
    environ : mapping, optional
        Default: this process's.
    files : sequence of str
        Names, in the order in which they are read.

    Raises
    ------
    ConfigError
        The folder has none of the files, or one cannot be read.
    """
    there = [folder / name for name in files if (folder / name).is_file()]
    if not there:
        raise ConfigError(f"{folder} has no Hadoop configuration: expected one of {', '.join(files)}")
    found: dict[str, tuple[str, bool]] = {}
    for path in there:
        _merge(found, _read(path))
    values = {name: value for name, (value, _) in found.items()}
    return HadoopConf(values, str(folder), os.environ if environ is None else environ)


def scheduler_setting(conf: HadoopConf, name: str) -> str:
    """Return a setting as a ResourceManager reads it, including ``capacity-scheduler.xml``; empty if it is not set.

    Parameters
    ----------
    conf : HadoopConf
        Used as it is if its folder has no such file, as on many clients.
    name : str
    """
    if conf.source and (Path(conf.source) / SCHEDULER_FILE).is_file():
        with suppress(ConfigError):
            conf = read_configuration(Path(conf.source), conf.environ, (*FILES, SCHEDULER_FILE))
    return conf.get(name)


def environment_configuration(environ: Mapping[str, str] | None = None) -> HadoopConf:
    """Return the settings in ``HADOOP_CONF_DIR``; empty if the variable is not set.

    Raises
    ------
    ConfigError
        The folder has no configuration, or a file cannot be read.
    """
    environ = os.environ if environ is None else environ
    folder = environ.get("HADOOP_CONF_DIR", "")
    if not folder:
        return HadoopConf(environ=environ)
    path = Path(folder)
    if not any((path / name).is_file() for name in FILES):
        why = "it has none of these files" if path.is_dir() else "there is no such folder"
        raise ConfigError(
            f"HADOOP_CONF_DIR is {folder!r}, but must name the folder with {', '.join(FILES[:-1])} and {FILES[-1]} of "
            f"a cluster: {why}; {_START_ONE}"
        )
    try:
        return read_configuration(path, environ)
    except ConfigError as error:
        raise ConfigError(f"HADOOP_CONF_DIR is {folder}: {error}") from None


# ---- addresses of services


def default_authority(conf: HadoopConf) -> str:
    """Return the NameNode (``host:port``) or name service of ``fs.defaultFS``; empty if that is not on HDFS."""
    parts = urlsplit(conf.get("fs.defaultFS") or conf.get("fs.default.name"))
    return parts.netloc if parts.scheme == "hdfs" else ""


def namenode_web_addresses(conf: HadoopConf, authority: str) -> tuple[str, ...]:
    """Return the WebHDFS URLs of a file system's NameNodes.

    Parameters
    ----------
    conf : HadoopConf
    authority : str
        Of ``hdfs://AUTHORITY/``: a name service, or the address of one NameNode.

    Returns
    -------
    tuple of str
        One for each NameNode, in the configuration's order.  One of them is active, and this may change.

    Raises
    ------
    ConfigError
        A name service is configured without NameNodes.
    """
    secure = conf.get("dfs.http.policy").upper() == "HTTPS_ONLY"
    scheme = "https" if secure else "http"
    key = f"dfs.namenode.{scheme}-address"
    default_port = NAMENODE_HTTPS_PORT if secure else NAMENODE_HTTP_PORT
    if authority not in conf.get_list("dfs.nameservices"):
        host = _host(authority)
        known = _is_namenode(conf, authority)
        return (f"{scheme}://{_listening(conf.get(key) if known else '', host, default_port)}",)
    # The keys of a name service with a single NameNode end with the service's name.
    namenodes = conf.get_list(f"dfs.ha.namenodes.{authority}")
    suffixes = [f"{authority}.{namenode}" for namenode in namenodes] or [authority]
    found = []
    for suffix in suffixes:
        host = _host(conf.get(f"dfs.namenode.rpc-address.{suffix}"))
        text = conf.get(f"{key}.{suffix}")
        if not host and not text:
            raise ConfigError(f"{conf.source}: name service {authority} needs {key}.{suffix} in hdfs-site.xml")
        found.append(f"{scheme}://{_listening(text, host, default_port)}")
    return tuple(found)


def guess_of(conf: HadoopConf, authority: str) -> str:
    """Return a note that the port of :func:`namenode_web_addresses` is a guess; empty if it is configured."""
    if authority in conf.get_list("dfs.nameservices") or _is_namenode(conf, authority):
        return ""
    source = f"{conf.source} does not describe" if conf.source else "HADOOP_CONF_DIR is not set, so nothing describes"
    return (
        f"that port is a guess, for {source} the NameNode {authority}: check that address, or name the port of the "
        f"NameNode's web pages, as in webhdfs://{_host(authority)}:{NAMENODE_HTTP_PORT}"
    )


def _is_namenode(conf: HadoopConf, authority: str) -> bool:
    """Return whether the configuration describes this NameNode, not one of another cluster."""
    ours = {default_authority(conf), conf.get("dfs.namenode.rpc-address")} - {""}
    return authority in ours or (":" not in authority and authority in {_host(address) for address in ours})


def resourcemanager_web_addresses(conf: HadoopConf) -> tuple[str, ...]:
    """Return the URLs of the ResourceManagers' web servers, in the configuration's order."""
    secure = conf.get("yarn.http.policy").upper() == "HTTPS_ONLY"
    scheme, key = ("https", "webapp.https.address") if secure else ("http", "webapp.address")
    port = 8090 if secure else RESOURCEMANAGER_HTTP_PORT
    return tuple(
        f"{scheme}://{_listening(conf.get(f'yarn.resourcemanager.{key}{suffix}'), host or 'localhost', port)}"
        for suffix, host in _resourcemanagers(conf)
    )


def _resourcemanagers(conf: HadoopConf) -> list[tuple[str, str]]:
    """Return (suffix of its settings, host or empty) for each ResourceManager."""
    ids = conf.get_list("yarn.resourcemanager.ha.rm-ids") if conf.get_bool("yarn.resourcemanager.ha.enabled") else ()
    suffixes = [f".{each}" for each in ids] or [""]
    return [(suffix, conf.get(f"yarn.resourcemanager.hostname{suffix}")) for suffix in suffixes]


def _host(address: str) -> str:
    return address.rpartition(":")[0] if ":" in address else address


def _listening(address: str, host: str, default_port: int) -> str:
    """Return ``host:port`` of a service; ``host`` if it listens on all interfaces."""
    name, _, port = address.rpartition(":") if ":" in address else (address, "", "")
    return f"{host if name in _ALL_INTERFACES else name}:{port or default_port}"


def addresses_of(authority: str) -> list[str]:
    """Return the addresses of a host in the format of tokens; empty if the host is unknown."""
    host, _, port = authority.rpartition(":") if ":" in authority else (authority, "", str(NAMENODE_PORT))
    with suppress(OSError, ValueError):
        return [f"{info[4][0]}:{port}" for info in socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)]
    return []
