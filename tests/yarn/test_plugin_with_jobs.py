"""EPS jobs under the plugin in an unmodified ResourceManager: one gives what another needs, and gets it back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

import eps
from eps.hadoop.conf import environment_configuration
from eps.job.client import Job
from eps.job.yarn.staged_jobs import StagedJobs
from eps.system.waits import wait_for
from hscheduler.yarn.endpoint import PluginServer, secret_of
from hscheduler.yarn.masters import AskedMasters, Masters
from hscheduler.yarn.plan import make_plan
from hscheduler.yarn.wire import Plan, Snapshot
from tests.yarn.hadoop import PATIENCE_S, Hadoop
from tests.yarn.plugin import Plugin, unfought
from tests.yarn.test_jobs_on_yarn import JOB, application_of, reach

pytestmark = pytest.mark.usefixtures("no_leftovers")

FEEDBACK = 5
#: Of 12 cores the first takes 11 (its master one, five members two each), and the second needs five.
MEMBERS_OF_TWO = {**JOB, "servers": 1, "splits": 8, "vcores": "2,master=1"}
GIVES: dict[str, Any] = {**MEMBERS_OF_TWO, "workers": 4, "iterations": 100_000, "stretch_s": 0.03, "grow_back_s": 3.0}
NEEDS: dict[str, Any] = {**MEMBERS_OF_TWO, "workers": 1, "iterations": 30}


class Patient:
    """A planner that kills no container, however slow the machine is: marked containers stay marked, and are spared."""

    def __init__(self, masters: Masters) -> None:
        self._asked = AskedMasters(FEEDBACK, masters.status)
        self.taken: set[str] = set()

    def __call__(self, snapshot: Snapshot) -> Plan:
        applications = tuple(
            dataclasses.replace(
                application,
                containers=tuple(
                    dataclasses.replace(held, marked=held.container_id in self.taken) for held in application.containers
                ),
            )
            for application in snapshot.applications
        )
        told = self._asked.facts(applications)
        plan = make_plan(unfought(dataclasses.replace(snapshot, applications=applications)), told)
        spares = tuple(sorted(self.taken))
        self.taken.update(plan.takes)
        return dataclasses.replace(plan, spares=spares)


@pytest.fixture
def patient(on_yarn: Hadoop) -> Iterator[Patient]:
    """Return a planner that queries the cluster's job masters."""
    with closing(Masters(StagedJobs(environment_configuration(), ""))) as masters:
        yield Patient(masters)


def losses_of(history: list[dict[str, Any]]) -> list[tuple[int, float]]:
    return [(entry["clock"], entry["loss"]) for entry in history]


def grown(status: dict[str, Any]) -> list[str]:
    """Return the changes that made a job larger; some attempts may have failed on a slow machine."""
    return [
        str(change["operation"]) for change in status["changes"] if change["added"] and change["phase"] == "released"
    ]


def test_a_job_gives_what_another_needs_to_start_and_regains_it_afterwards(
    on_yarn: Hadoop, plugin: Plugin, patient: Patient
) -> None:
    local = eps.run(**{**NEEDS, "name": "local"})
    told: list[str] = []
    with Job.start(**GIVES, on="yarn", name="gives") as giving:
        reach(giving, FEEDBACK)
        with Job.start(**NEEDS, on="yarn", name="needs") as needing:
            app = f"/ws/v1/cluster/apps/{application_of(needing)}"
            on_yarn.wait_until(lambda: on_yarn.rest(app)["app"]["state"] in ("ACCEPTED", "RUNNING"), "it to wait")
            # H-scheduler does not answer the plugin so far, and nothing is preempted.
            assert giving.status()["evictions"]["asked"] == 0 and not needing.status()["clock"]
            with PluginServer(patient, secret_of(plugin.secret_file), listening=plugin.socket.dup(), tell=told.append):
                report = needing.wait(PATIENCE_S)
        status = giving.status()
        evicted = status["evictions"]
        assert report["model_sha256"] == local["model_sha256"] and report["losses"] == []
        assert evicted["drained"] == evicted["asked"] == len(patient.taken) >= 2, (evicted, told)
        assert any("(needs) waits for" in line and "(gives) gives 2 workers" in line for line in told), told
        assert evicted["given"] == {"worker": 2, "server": 0} and not grown(status), (
            "the free space belongs to another job"
        )
        # It is, once no job has wanted it for a while.
        wait_for(lambda: not any(giving.status()["evictions"]["given"].values()), PATIENCE_S, "it to grow back")
        status, losses = giving.status(), losses_of(giving.history())
        giving.kill("seen")
    assert set(grown(status)) == {"add-workers"} and status["workers"] == GIVES["workers"]
    assert status["losses"] == []
    # Its results until then have the bits of an undisturbed job.
    # A job on this machine takes no settings of YARN.
    here = {name: value for name, value in GIVES.items() if name != "grow_back_s"}
    alone = eps.run(**{**here, "name": "alone", "iterations": len(losses) - 1, "stretch_s": 0.0})
    assert losses_of(alone["history"])[: len(losses)] == losses
