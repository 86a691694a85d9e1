"""What was started, as a file: so that another command finds it, and ends exactly that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from eps.cluster.devcluster.java import Java
from eps.cluster.devcluster.places import Places
from eps.cluster.devcluster.processes import Process, boot_id
from eps.cluster.devcluster.settings import ClusterSettings
from eps.errors import StorageError
from eps.storage.atomic import read_json, write_json_atomic

_FORMAT = 1


@dataclass(frozen=True)
class Record:
    """A cluster that was started.

    Parameters
    ----------
    settings : ClusterSettings
    java : Java
    jars : str
        The class path of its jars.
    ports : mapping
        daemon -> what for -> port.
    processes : mapping
        daemon -> process; of daemons that were started since the last stop, and of ``format`` while that runs.
    boot : str
        The boot of the host that the processes belong to.
    """

    settings: ClusterSettings
    java: Java
    jars: str
    ports: Mapping[str, Mapping[str, int]]
    processes: Mapping[str, Process] = field(default_factory=dict)
    boot: str = field(default_factory=boot_id)

    def with_process(self, name: str, process: Process) -> Record:
        """Return the record with a process that was started."""
        return replace(self, processes={**self.processes, name: process})


def write_record(places: Places, record: Record) -> None:
    """Write the record of a cluster.

    Raises
    ------
    StorageError
        It cannot be written.
    """
    write_json_atomic(
        places.record,
        {
            "format": _FORMAT,
            "settings": record.settings.to_dict(),
            "java": asdict(record.java),
            "jars": record.jars,
            "ports": {daemon: dict(ports) for daemon, ports in record.ports.items()},
            "processes": {name: asdict(process) for name, process in record.processes.items()},
            "boot": record.boot,
        },
        sync=False,
    )


def read_record(places: Places) -> Record | None:
    """Return the record of a cluster; None where there is none.

    Processes of another boot of the host are left out: they are gone.

    Raises
    ------
    StorageError
        It is damaged, or another version of EPS wrote it.
    """
    values = read_json(places.record)
    if values is None:
        return None
    try:
        if values["format"] != _FORMAT:
            raise ValueError(f"its format is {values['format']}, but must be {_FORMAT}")
        boot = boot_id()
        processes = values["processes"] if values["boot"] == boot else {}
        return Record(
            settings=ClusterSettings.from_dict(values["settings"]),
            java=Java(**values["java"]),
            jars=values["jars"],
            ports=values["ports"],
            processes={name: Process(**process) for name, process in processes.items()},
            boot=boot,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(
            f"{places.record}: is not the record of a cluster ({error}); remove it, and stop the cluster again"
        ) from error
