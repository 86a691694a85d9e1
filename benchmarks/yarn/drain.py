"""Time in which a job releases containers that YARN preempts, and the cost for the job.

    eval "$(eps devcluster start)"
    python benchmarks/yarn/drain.py [--containers 60] [--output out.json] [--quick]

The cluster of HADOOP_CONF_DIR must have three nodes of 4 vcores and 4096 MB and no other users.  The user of this
process must be its administrator, since the benchmark resizes nodes.  A job has 4 workers and 3 servers; with its
application master it fills two nodes.  The benchmark repeatedly shrinks the full node without the master to nothing.
YARN then sends the job its preemption message for all containers there, and would kill them after ``GRACE_S``.  The job
drains and releases them, and requests others, which fit on the third node.

``given_back_s`` runs from the order to the ResourceManager until each container is released.  It includes the wait of
the message for the application master's next heartbeat (a second at most).  ``from_message_s`` runs from the message's
arrival at the job master until the master knows that the container has exited.  Jobs run one after another until enough
containers were preempted.  The model of each is compared with that of an undisturbed job on this machine.  JSON goes to
standard output, a table to standard error.
"""

from __future__ import annotations

import argparse
import getpass
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
sys.path.insert(0, str(ROOT))

import requests  # noqa: E402

import eps  # noqa: E402
from benchmarks.bench_common import (  # noqa: E402
    Bar,
    conclude,
    end_in_order,
    machine,
    new_file,
    positive,
    rounded,
    run_to_the_end,
    say,
    spread,
)
from eps.cluster.yarn.application import Application  # noqa: E402
from eps.errors import ConfigError, DeadlineError  # noqa: E402
from eps.hadoop.conf import environment_configuration, resourcemanager_web_addresses  # noqa: E402
from eps.job.client import Job  # noqa: E402
from eps.job.yarn.remote import YarnJob  # noqa: E402

JOB: dict[str, Any] = {
    "data": "sklearn:digits", "model": "softmax", "workers": 4, "servers": 3, "iterations": 2500, "stretch_s": 0.001,
    "memory_mb": "512",
}  # fmt: skip
SIZE = JOB["workers"] + JOB["servers"]
#: YARN's own default.
GRACE_S = 15.0
#: Interval at which the benchmark looks for containers.
LOOK_S = 0.02
#: Timeout of every wait.
PATIENCE_S = 120.0
#: Timeout of a job's remaining iterations.
END_S = 600.0
#: Nodes are shrunk during this share of a job's iterations, since the last iterations are not drained.
SHARE = 0.9
_TIMEOUT_S = 10.0


class Cluster:
    """The web interface of the ResourceManager."""

    def __init__(self) -> None:
        (self._url, *others) = resourcemanager_web_addresses(environment_configuration())
        if others:
            raise ConfigError("the cluster has several ResourceManagers: use that of eps devcluster start")
        self._session = requests.Session()
        self._session.trust_env = False

    def get(self, path: str) -> Any:
        """Return its answer for a path."""
        answer = self._session.get(f"{self._url}/ws/v1/cluster/{path}", timeout=_TIMEOUT_S)
        answer.raise_for_status()
        return answer.json()

    def resize(self, node: str, memory_mb: int, vcores: int) -> None:
        """Resize a node; containers that no longer fit are preempted, and killed after the grace time."""
        body = {"resource": {"memory": memory_mb, "vCores": vcores}, "overCommitTimeout": int(GRACE_S * 1000)}
        path = f"{self._url}/ws/v1/cluster/nodes/{node}/resource"
        answer = self._session.post(path, json=body, params={"user.name": getpass.getuser()}, timeout=_TIMEOUT_S)
        answer.raise_for_status()

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Return the nodes by name."""
        return {node["id"]: node for node in self.get("nodes?states=RUNNING")["nodes"]["node"]}

    def containers(self, application: str, attempt: str) -> dict[str, str]:
        """Return the containers of an attempt -> their nodes."""
        found = self.get(f"apps/{application}/appattempts/{attempt}/containers").get("container", [])
        return {each["containerId"]: each["nodeId"] for each in (found if isinstance(found, list) else [found])}

    def own_memory_mb(self, node: dict[str, Any]) -> int:
        """Return the memory of a node as the node itself reports it."""
        url = f"http://{node['nodeHTTPAddress']}/ws/v1/node/info"
        return int(self._session.get(url, timeout=_TIMEOUT_S).json()["nodeInfo"]["totalPmemAllocatedContainersMB"])


def wait(holds: Callable[[], bool], what: str) -> None:
    """Wait until ``holds()``.

    Raises
    ------
    DeadlineError
        It did not hold in time.
    """
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end_s:
            raise DeadlineError(f"waited {PATIENCE_S:g} s for {what}")
        time.sleep(LOOK_S)


class Drained:
    """One job, and the containers that it lost to preemption."""

    def __init__(self, cluster: Cluster, job: Job) -> None:
        self._cluster = cluster
        self._job = job
        found = Application.read(job.directory)
        assert found is not None
        self._application = found.application_id
        self.given_back_s: list[float] = []

    def go_on(self, most: int) -> None:
        """Shrink nodes until the job has released ``most`` containers or is near its end."""
        while len(self.given_back_s) < most and self._is_whole():
            self._shrink_one()

    def _attempt(self) -> str:
        attempts = self._cluster.get(f"apps/{self._application}/appattempts")["appAttempts"]["appAttempt"]
        return str(attempts[-1]["appAttemptId"])

    def _is_whole(self) -> bool:
        """Wait until the job has its size; return whether there is time for another round."""

        def settled() -> bool:
            status = self._job.status()
            here = [member for member in status["members"] if member["host"]]
            whole = len(here) == SIZE and status["plan"] is None and not status["queued"]
            return whole or status["clock"] >= SHARE * JOB["iterations"]

        wait(settled, "the job to have its size")
        return bool(self._job.status()["clock"] < SHARE * JOB["iterations"])

    def _shrink_one(self) -> None:
        cluster, attempt = self._cluster, self._attempt()
        before = cluster.containers(self._application, attempt)
        address = YarnJob(self._job.directory).address()
        assert address is not None
        master = address.host
        on = {node: [c for c, where in before.items() if where == node] for node in cluster.nodes()}
        node = max((n for n in on if not n.startswith(f"{master}:")), key=lambda n: len(on[n]))
        told = cluster.nodes()[node]
        memory_mb, vcores = (
            told["usedMemoryMB"] + told["availMemoryMB"],
            told["usedVirtualCores"] + told["availableVirtualCores"],
        )
        left, began_s = set(on[node]), time.monotonic()
        cluster.resize(node, 64, 1)
        try:

            def given_back() -> bool:
                there = cluster.containers(self._application, attempt)
                self.given_back_s += [time.monotonic() - began_s] * len(left - there.keys())
                left.intersection_update(there)
                return not left

            wait(given_back, f"{node} to be drained")
            say(f"{node}: {len(on[node])} containers in {self.given_back_s[-1]:.2f} s")
            self._is_whole()
        finally:
            cluster.resize(node, memory_mb, vcores)
        # A node that does not know its new size yet would delay the start of containers.
        wait(lambda: cluster.own_memory_mb(told) == memory_mb, f"{node} to grow")


def measure(containers: int) -> dict[str, Any]:
    """Return all measurements."""
    say("the same job on this machine")
    local = eps.run(**{**JOB, "stretch_s": 0.0}, name="bench-local")
    cluster, jobs = Cluster(), []
    given_back_s: list[float] = []
    from_message_s: list[float] = []
    while len(given_back_s) < containers:
        with Job.start(**JOB, on="yarn", name=f"bench-drain-{len(jobs)}") as job:
            wait(lambda: job.status()["clock"] >= 5, "the job to train")
            drained = Drained(cluster, job)
            drained.go_on(containers - len(given_back_s))
            report = job.wait(END_S)
        given_back_s += drained.given_back_s
        evictions = report["evictions"]
        from_message_s += [each["seconds"] for each in evictions["members"] if each["seconds"] is not None]
        jobs.append(
            {
                "given_back": len(drained.given_back_s),
                "evictions": {name: n for name, n in evictions.items() if isinstance(n, int)},
                "losses": len(report["losses"]),
                "ledger": {name: report["ledger"][name] for name in ("lost", "applied_twice")},
                "bit_identical": report["model_sha256"] == local["model_sha256"],
            }
        )
        say(f"{len(given_back_s)} containers; the job {report['state']}")
        if not drained.given_back_s:
            raise ConfigError("the job ended before a container could be preempted")
    return {
        "given_back_s": spread_and_p99(given_back_s),
        "from_message_s": spread_and_p99(from_message_s),
        "jobs": jobs,
    }


def spread_and_p99(values: Sequence[float]) -> dict[str, Any]:
    """Return median, range, values and the 99th percentile."""
    return {**spread(values), "p99": rounded(sorted(values)[-(-99 * len(values) // 100) - 1])}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a bar is missed, but 0 with ``--quick``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--containers", type=positive, default=60, help="least number of containers to preempt")
    parser.add_argument("--quick", action="store_true", help="four containers, to see whether it works")
    parser.add_argument("--output", type=new_file, help="write the JSON there as well")
    arguments = parser.parse_args(argv)
    end_in_order()
    load = os.getloadavg()
    results = measure(4 if arguments.quick else arguments.containers)
    jobs = results["jobs"]
    unharmed = all(
        job["bit_identical"] and not job["losses"] and not any(job["ledger"].values()) and not job["evictions"]["lost"]
        for job in jobs
    )
    bars = [
        Bar("container given back, p99, seconds", results["given_back_s"]["p99"], 5.0, at_least=False),
        Bar("jobs with nothing lost and the same bits", float(unharmed), 1.0, at_least=True),
    ]
    results = {
        "machine": {**machine(), "load_before": [round(value, 2) for value in load]},
        "containers": len(results["given_back_s"]["values"]),
        **results,
    }
    return conclude("yarn drain", results, bars, arguments.output, arguments.quick)


if __name__ == "__main__":
    run_to_the_end(main)
