"""What the master of a sweep's application is told, beside what the containers of every job have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eps.errors import ConfigError

#: Name in the master's container of what is for it alone: the sweep, the service's certificates, files of models.
SWEEP_FOLDER = "eps-sweep"
SWEEP_FILE = "sweep.json"
#: Of the application's shared folder: where the service listens.
SERVICE_FILE = "service.json"
#: The sweep's name in the service.
SWEEP = "sweep"
#: Type of the application: no job of its own for whoever counts those.
APPLICATION_TYPE = "EPS-SWEEP"


@dataclass(frozen=True)
class SweepOrders:
    """A sweep's file, as the application's master runs it."""

    policy: str
    #: As of :meth:`hscheduler.spec.Spec.tables`; the cluster is that of the scheduler.
    tables: Mapping[str, Any]

    def to_bytes(self) -> bytes:
        """Return what :meth:`read` takes."""
        return json.dumps({"policy": self.policy, "tables": self.tables}).encode("utf-8")

    @classmethod
    def read(cls, folder: Path) -> SweepOrders:
        """Return the orders in what was brought to a container.

        Raises
        ------
        ConfigError
            There are none.
        """
        try:
            values = json.loads((folder / SWEEP_FILE).read_text(encoding="utf-8"))
            return cls(str(values["policy"]), dict(values["tables"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{folder / SWEEP_FILE} does not say which sweep this is: {error!r}") from None
