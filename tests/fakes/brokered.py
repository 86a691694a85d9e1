"""An application's containers for one job, behind a broker: over a YARN that has none."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from eps.cluster.broker.calls import BrokerClient
from eps.cluster.broker.resources import BrokeredResourceManager
from eps.cluster.broker.service import Broker
from eps.cluster.yarn.launch import LaunchTemplate, RoleTemplate
from eps.cluster.yarn.resources import Timing, YarnResourceManager
from eps.net.security.credentials import Security
from tests.fakes.yarn import KINDS, FakeYarn

JOB = "job"


class BrokeredYarn:
    """A broker over a fake YARN, and the lines of job masters to it.

    Parameters
    ----------
    timing : Timing
    """

    def __init__(self, timing: Timing) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="eps-test-"))
        self.yarn = FakeYarn()
        template = LaunchTemplate({role: RoleTemplate("python") for role in KINDS})
        self.manager = YarnResourceManager(*self.yarn.clients(), template, timing=timing)
        self.broker = Broker(self.manager)
        self.security: dict[str, Security] = {}
        self._addresses: dict[str, str] = {}

    def add(self, job: str = JOB, max_containers: int = 0) -> None:
        """Let a job in."""
        self.security[job] = Security(sockets=self._folder / job)
        self._addresses[job] = str(self.broker.add(job, self.security[job], max_containers))

    def line(self, job: str = JOB, by: str = "") -> BrokerClient:
        """Return a line to a job's desk, with the folder of that job, or of another."""
        return BrokerClient(self._addresses[job], self.security[by or job])

    def master(self, job: str = JOB) -> BrokeredResourceManager:
        """Return the manager of a new master of a job."""
        return BrokeredResourceManager(self.line(job))

    def close(self) -> None:
        self.broker.close()
        self.manager.close()
        shutil.rmtree(self._folder)
