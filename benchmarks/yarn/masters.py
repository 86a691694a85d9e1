"""Memory and processor time of H-scheduler's application master, by the number of its trials.

    python benchmarks/yarn/masters.py [--trials 500] [--clocks-per-s 0.1] [--window-s 20] [--output out.json]

H-scheduler, the broker of containers and the masters of the trials are real, in the same processes as on YARN.
Containers are simulated: their members register, send heartbeats and report iterations, and compute nothing.  When all
trials train, the benchmark reads the resident memory of each process (as YARN counts it, and proportionally, with
shared pages divided) and its processor time over a window.  A master in a process of its own with its supervisor had
135 MB.

``scheduler``: the process of the application master, without Java.  ``masters``: the processes of the trials' masters.
JSON goes to standard output.

A master's processor time has a fixed part, and a part for each iteration (a report, a horizon, a status).  Neither
depends on how much an iteration computes.  Runs with two rates separate them.  An iteration takes ten seconds by
default: in a sweep that fills a thousand containers, trials with faster iterations end before the last one has started.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
sys.path.insert(0, str(ROOT))

from benchmarks.bench_common import machine, new_file, positive, say  # noqa: E402
from eps.cluster.broker.service import Broker  # noqa: E402
from eps.cluster.yarn.application import MasterOrders  # noqa: E402
from eps.cluster.yarn.launch import LaunchTemplate, RoleTemplate  # noqa: E402
from eps.cluster.yarn.resources import YarnResourceManager  # noqa: E402
from eps.cluster.yarn.types import Ask, Resource  # noqa: E402
from eps.job.yarn import shared_application  # noqa: E402
from eps.storage.atomic import json_bytes  # noqa: E402
from eps.storage.jobdir import jobs_dir  # noqa: E402
from eps.storage.locations import RemotePath  # noqa: E402
from eps.system.threads import expect_many_threads  # noqa: E402
from eps.system.waits import wait_for  # noqa: E402
from hscheduler.live.scheduler import LiveScheduler, LiveSettings  # noqa: E402
from hscheduler.live.sweep import Sweep  # noqa: E402
from hscheduler.spec import Spec  # noqa: E402
from tests.fakes.members import Members  # noqa: E402
from tests.fakes.yarn import FakeContainer, FakeYarn  # noqa: E402

#: More than the benchmark runs, so that trials never end.
ITERATIONS = 1_000_000
BEAT_S = 5.0
START_S = 1200.0


class SimulatedYarn(FakeYarn):
    """Containers whose processes are fake members, in a process of their own."""

    def __init__(self, clocks_per_s: float, containers: int) -> None:
        super().__init__({"node-1:8041": Resource(1024 * (containers + 8), containers + 8)})
        self.members = Members(BEAT_S, clocks_per_s)

    def _node_for(self, ask: Ask) -> str | None:
        # All containers fit.  A search would take time quadratic in their number.
        return next(iter(self.capacity))

    def _begun(self, container: FakeContainer) -> None:
        assert container.launch is not None
        env = container.launch.env
        tls = jobs_dir() / env["JOB"] / "tls"
        self.members.attach(env["EPS_CONTAINER_ID"], env["EPS_MASTER_ADDRESS"], tls)


class NamedRoles(dict[str, RoleTemplate]):
    """Roles of jobs; the environment of their containers names the job."""

    def __setitem__(self, key: str, template: RoleTemplate) -> None:
        super().__setitem__(key, RoleTemplate("simulated", {**template.env, "JOB": key.partition("/")[0]}))


@contextmanager
def file_system() -> Iterator[str]:
    """Run a small HDFS in a process of its own; yield its address."""
    code = "from tests.fakes.webhdfs import FakeHdfs\nwith FakeHdfs() as h:\n print(h.authority, flush=True); input()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


def spec_of(trials: int) -> Spec:
    """Return a sweep in which all trials fit the cluster."""
    return Spec.of(
        {
            # Three containers for each trial: master, worker and server.
            "cluster": {"nodes": 1, "vcores": 3 * trials, "memory": f"{3 * trials}GiB", "container_memory": "1GiB"},
            "sweep": {"trials": trials, "arrival": "burst", "algorithm": "random", "threshold": trials},
            "space": {"learning_rate": {"loguniform": [0.001, 1.0]}},
            "job": {
                "on": "yarn", "data": "sklearn:digits", "model": "softmax", "workers": 1, "servers": 1, "splits": 2,
                "iterations": ITERATIONS, "member_timeout_s": 60.0,
            },
        }
    )  # fmt: skip


def memory_mb(pid: int) -> tuple[float, float]:
    """Return resident and proportional memory of a process."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name in ("Rss", "Pss"):
            found[name] = int(value.split()[0]) / 1024
    return found["Rss"], found["Pss"]


def cpu_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(pids: dict[str, list[int]], window_s: float) -> dict[str, Any]:
    """Return memory and processor time of groups of processes."""
    before = {pid: cpu_s(pid) for group in pids.values() for pid in group}
    time.sleep(window_s)
    found: dict[str, Any] = {}
    for name, group in pids.items():
        sizes = [memory_mb(pid) for pid in group]
        found[name] = {
            "processes": len(group),
            "resident_mb": round(sum(resident for resident, _ in sizes), 1),
            "proportional_mb": round(sum(proportional for _, proportional in sizes), 1),
            "cores": round(sum(cpu_s(pid) - before[pid] for pid in group) / window_s, 3),
        }
    return found


def run(trials: int, clocks_per_s: float, window_s: float) -> dict[str, Any]:
    """Run the trials until all train; return the measures of their application master."""
    yarn = SimulatedYarn(clocks_per_s, 2 * trials)
    roles = NamedRoles()
    resources = YarnResourceManager(*yarn.clients(), LaunchTemplate(roles))
    broker = Broker(resources, role_of=shared_application.role_key)
    spec = spec_of(trials)
    with file_system() as authority:
        shared = RemotePath("webhdfs", authority, "/sweeps/one")
        orders = MasterOrders(str(shared), "python", {}, {})
        place = shared_application.SharedApplication(
            orders, shared.parent, "attempt-000001", "127.0.0.1", broker, roles
        )
        with shared_application.hosting(place):
            began_s = time.monotonic()
            scheduler = LiveScheduler(spec.cluster.capacities(), LiveSettings("static", threshold=trials))
            sweep = Sweep(spec, "static")
            scheduler.open_sweep(spec.opened("sweep"))
            threading.Thread(target=sweep.feed, args=(scheduler,), name="sweep", daemon=True).start()

            def training() -> int:
                return scheduler.ask(lambda: sum(job.iteration > 0 for job in scheduler.state.jobs.values()))

            wait_for(lambda: training() >= trials, START_S, f"the start of {trials} trials")
            start_s = time.monotonic() - began_s
            say(f"{trials} trials train after {start_s:.0f} s")
            masters = place.host_pids()
            start_cpu_s = {"scheduler": cpu_s(os.getpid()), "masters": sum(map(cpu_s, masters))}
            found = measured({"scheduler": [os.getpid()], "masters": masters}, window_s)
            found["per_trial_resident_mb"] = round(found["masters"]["resident_mb"] / trials, 2)
            # Includes the imports of the processes.
            for name, seconds in start_cpu_s.items():
                found[name]["start_cpu_ms_per_trial"] = round(1000 * seconds / trials, 1)
                found[name]["cpu_ms_per_trial_and_s"] = round(1000 * found[name]["cores"] / trials, 2)
            return {"trials": trials, "start_s": round(start_s, 1), **found}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=positive, default=500, help="trials that train at once (500)")
    parser.add_argument("--clocks-per-s", type=float, default=0.1, help="iterations a second of each trial (0.1)")
    parser.add_argument(
        "--window-s", type=float, default=20.0, help="seconds over which processor time is measured (20)"
    )
    parser.add_argument("--output", type=new_file, help="write the JSON there as well")
    args = parser.parse_args(argv)
    # As the application master does.
    expect_many_threads()
    with tempfile.TemporaryDirectory(prefix="eps-masters-", ignore_cleanup_errors=True) as home:
        os.environ["EPS_HOME"] = home
        found = {"machine": machine(), "clocks_per_s": args.clocks_per_s, "members": "simulated"}
        found.update(run(args.trials, args.clocks_per_s, args.window_s))
        print(json.dumps(found, indent=1), flush=True)
        if args.output is not None:
            args.output.write_bytes(json_bytes(found))
        shutil.rmtree(home, ignore_errors=True)
        # The trials do not end by themselves.
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
