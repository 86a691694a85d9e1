"""The file systems that a job on YARN uses, and whether their addresses lead to one at all.

A NameNode in safe mode, or one whose twin takes over, is waited for by whoever uses it.  An address that leads nowhere
is none of these: who has mistyped it is to know within seconds, and which setting it was.
"""

from __future__ import annotations

import socket
from collections.abc import Collection
from urllib.parse import urlsplit

from eps.cluster.yarn.application import home_location
from eps.cluster.yarn.facade import Client
from eps.errors import StorageAwayError
from eps.hadoop.conf import HadoopConf
from eps.spec.job_spec import JobSpec
from eps.storage.locations import RemotePath, is_remote
from eps.storage.webhdfs import SEE_IT_RUNS, web_addresses

#: A NameNode's host has this long to take a connection.
CONNECT_S = 5.0


def home_of(conf: HadoopConf, spec: JobSpec, client: Client) -> RemotePath:
    """Return the folder of the cluster's file system in which EPS keeps jobs and what they share.

    Raises as :func:`~eps.cluster.yarn.application.home_location`.
    """
    return home_location(conf, client.user, spec.staging)


def file_systems_of(home: RemotePath, spec: JobSpec, results: Collection[str] = ()) -> list[str]:
    """Return the file systems of the cluster that a job's containers use, for which they need tokens.

    Parameters
    ----------
    home : RemotePath
    spec : JobSpec
    results : collection of str
        Where its processes bring its report and model.
    """
    places = [home, *(RemotePath.parse(text) for text in (spec.checkpoint_dir, *results) if is_remote(text))]
    # WebHDFS that is named by its own address belongs to no configuration: it is on its own.
    return sorted({f"hdfs://{place.authority}" for place in places if place.scheme == "hdfs"})


def check_file_systems(conf: HadoopConf, spec: JobSpec, client: Client) -> None:
    """Refuse, before anything is prepared, folders of a job on a file system that cannot be reached.

    Raises
    ------
    ConfigError
        A folder is no location on HDFS.
    StorageAwayError
        Nobody listens there, or the host is not known; of several NameNodes one may be away.
    """
    home = home_of(conf, spec, client)
    option = f"staging is {spec.staging}" if spec.staging else f"fs.defaultFS of {conf.source} leads to {home}"
    _check(conf, home, option)
    if is_remote(spec.checkpoint_dir):
        _check(conf, RemotePath.parse(spec.checkpoint_dir), f"checkpoint_dir is {spec.checkpoint_dir}")


def _check(conf: HadoopConf, place: RemotePath, option: str) -> None:
    urls = web_addresses(place.scheme, place.authority, conf)
    if len(urls) > 1:
        # Those of a name service follow each other, and that takes its time.
        return
    reason = _unreachable(urls[0])
    if reason:
        raise StorageAwayError(f"{option}, but its NameNode cannot be reached at {urls[0]} ({reason}): {SEE_IT_RUNS}")


def _unreachable(url: str) -> str:
    """Return why nobody can be reached at an address; empty where somebody can."""
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname, parts.port or 80), CONNECT_S):
            return ""
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)
