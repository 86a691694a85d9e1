"""An application master in a YARN container: ``python -m tests.yarn.am_script``.

Its first attempt starts a container and hangs.  The second finds the container, ends the job, and reports what it saw
in its final message.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

from eps.cluster.api import ContainerRequest, Running
from eps.cluster.yarn.hadoop.master import open_master
from eps.cluster.yarn.launch import LaunchTemplate, RoleTemplate
from eps.cluster.yarn.resources import MasterEndpoint, Timing, YarnResourceManager
from eps.cluster.yarn.types import Grant, Resource
from eps.hadoop.session import HadoopSession
from eps.hadoop.tokens import tokens_for_containers
from eps.system.logs import set_up_logging

DEADLINE_S = 60.0


def age_s() -> float:
    """Return the age of this process in seconds."""
    with open("/proc/self/stat", encoding="ascii") as stat:
        ticks = int(stat.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def resident_mb() -> int:
    """Return the peak memory of this process."""
    with open("/proc/self/status", encoding="ascii") as status:
        (line,) = (line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


def main() -> int:
    """Play an attempt."""
    set_up_logging()
    session = HadoopSession()
    sleeper = RoleTemplate(f"{sys.executable} -S -c 'import time; time.sleep(1000)'")
    template = LaunchTemplate({"worker": sleeper}, tokens_for_containers(session))
    manager = YarnResourceManager(
        *open_master(session), template, MasterEndpoint("127.0.0.1", 4711), timing=Timing(busy_s=0.1, owner_s=0.5)
    )
    registered_s = age_s()
    # As the first attempt would have logged it: its container is the one after the master's.
    *application, _, _ = os.environ["CONTAINER_ID"].split("_")
    first = Grant("_".join([*application, "01", "000002"]), "", 0, Resource(0, 0))
    adopted = manager.adopt({"container-0001": first.pid})
    if not adopted:
        asked_s = time.monotonic()
        manager.request(ContainerRequest("container-0001", "worker", memory_mb=128))
        end_s = time.monotonic() + DEADLINE_S
        while not any(isinstance(event, Running) for event in manager.poll()):
            manager.wait(end_s - time.monotonic())
            assert time.monotonic() < end_s, "the container was not granted"
        print(f"registered after {registered_s:.2f} s, runs after {time.monotonic() - asked_s:.2f} s", flush=True)
        manager.beat(1)
        threading.Event().wait()
    seen = {
        "adopted": manager.granted(),
        "attempt": int(os.environ["CONTAINER_ID"].split("_")[-2]),
        "registered_s": round(registered_s, 2),
        "memory_mb": resident_mb(),
        "tokens": len(template.credentials),
    }
    manager.end_job(0, "finished", json.dumps(seen))
    manager.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
