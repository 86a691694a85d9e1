"""A YARN whose containers are processes of this host, and whose applications are jobs of EPS: all real but Hadoop.

The cluster is :class:`tests.fakes.yarn.FakeYarn`, in the test's process.  Each node is a process that forks containers
(:mod:`tests.fakes.yarn_node`); the application master is one of them (:mod:`tests.fakes.yarn_am`) and speaks with the
cluster over a socket.  One that ends is followed by the next attempt, as YARN does it.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from types import TracebackType
from typing import Any

from eps.cluster.yarn.application import ENDED_FILE, RESULTS
from eps.cluster.yarn.shipping import JOB, pack_job
from eps.cluster.yarn.types import Resource
from eps.job.client import Job
from eps.job.launch import prepare_job
from eps.spec.file import RunRequest
from eps.storage.atomic import read_json
from eps.storage.jobdir import MASTER_FILE
from eps.system.waits import wait_for
from tests.fakes.slow_model import SlowModel
from tests.fakes.yarn import FakeContainer, FakeYarn
from tests.fakes.yarn_am import PLACE
from tests.processes import Process, kill_all

ROOT = Path(__file__).resolve().parents[2]
#: For everything that is waited for, also on a busy machine.
PATIENCE_S = 90.0
CAPACITY = Resource(16384, 16)
NODES = ("127.0.0.11:8041", "127.0.0.12:8041")
#: A cluster that can lose some of its nodes.
MORE_NODES = (*NODES, "127.0.0.13:8041", "127.0.0.14:8041", "127.0.0.15:8041")


class RunningYarn(FakeYarn):
    """The cluster, and one job on it.

    Parameters
    ----------
    folder : Path
        For containers, and what they share.
    traps : str
        As of :mod:`tools.chaos.trap`; only masters can be their victims.
    capacity : Resource
        Of each node.
    nodes : sequence of str
        ``host:port`` of each; the first has the first job master.
    dies_at_end : bool
        The job master is killed when it has noted that the job has finished; then there are no traps.
    settings
        Of the job, whose model is a softmax that takes its time until :meth:`report`.
    """

    def __init__(
        self,
        folder: Path,
        traps: str = "",
        capacity: Resource = CAPACITY,
        nodes: Sequence[str] = NODES,
        *,
        dies_at_end: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(dict.fromkeys(nodes, capacity))
        self._folder, self._traps, self._dies_at_end = folder, traps, dies_at_end
        self._submitted_s = time.time()
        self.shared = folder / "shared"
        self.shared.mkdir(parents=True)
        self._slow = SlowModel(folder)
        own = {"on": "yarn", "model": self._slow.setting}
        # Nobody waits for it as eps run does.
        request = replace(RunRequest.from_values({**settings, **own}), detached=True)
        self._prepared = prepare_job(request.with_spec(checkpoint_dir=str(folder / "checkpoints")))
        directory = self._prepared.directory
        directory.note(yarn={"shared": str(self.shared)})
        zipfile.ZipFile(io.BytesIO(pack_job(directory).content)).extractall(folder / "localized")
        # What stands for the job on its client's machine notes the same there.
        directory.master_json.symlink_to(self.shared / MASTER_FILE)
        self.job = Job(directory)
        #: Of each process that was started, by container or ``am-ATTEMPT``; and how it ended, as YARN says it.
        self.processes: dict[str, Process] = {}
        self.statuses: dict[str, int] = {}
        #: An attempt that ends is followed by the next one.
        self.goes_on = True
        self._where: dict[str, str] = {}
        self._sides: dict[tuple[str, int], Any] = {}
        self._address = f"\0eps-test-{secrets.token_hex(8)}"
        self._listener = Listener(self._address, "AF_UNIX")
        self._nodes = {node: self._start_node() for node in nodes}
        self._threads = [
            threading.Thread(target=self._accept, daemon=True),
            *(threading.Thread(target=self._hear, args=(process,), daemon=True) for process in self._nodes.values()),
        ]
        for thread in self._threads:
            thread.start()
        self.begin_attempt()

    def __enter__(self) -> RunningYarn:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.goes_on = False
        self.job.close()
        for process in self._nodes.values():
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()
        for process in self._nodes.values():
            process.wait(PATIENCE_S)
        # Who waits for callers is woken by one.
        Client(self._address, "AF_UNIX").close()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for process in self._nodes.values():
            assert process.stdout is not None
            process.stdout.close()
        self._listener.close()
        # Of a node that was killed, containers may be left.
        left = [process for process in self.processes.values() if process.is_alive()]
        kill_all(left)
        self._prepared.lock.close()
        if error is not None:
            for log in sorted(self._folder.glob("containers/*/log")):
                print(f"---- {log.parent.name}\n{log.read_text(errors='replace')}")

    # ---- what is there

    def master(self) -> Process:
        """Return the process of the latest attempt, once it is there."""
        return self.process(f"am-{self.attempt}")

    def process(self, name: str) -> Process:
        """Return the process of a container, once it is there."""
        wait_for(lambda: name in self.processes, PATIENCE_S, f"{name} to begin")
        return self.processes[name]

    def pids(self) -> set[int]:
        """Return the processes of the containers that the application has."""
        with self.lock:
            return {self.processes[name].pid for name in self.containers if name in self.processes}

    def on(self, node: str) -> list[str]:
        """Return the containers on a node, without the master's."""
        with self.lock:
            return [name for name, container in self.containers.items() if container.grant.node == node]

    def reach(self, clock: int) -> dict[str, Any]:
        """Wait until the job has completed so many iterations; return its status then."""
        status: dict[str, Any] = {}

        def reached() -> bool:
            nonlocal status
            status = self.job.status()
            return bool(status["clock"] >= clock)

        wait_for(reached, PATIENCE_S, f"clock {clock}")
        return status

    def report(self) -> dict[str, Any]:
        """Let the job train as fast as it can until the application has ended; return its report."""
        self._slow.hurry()
        wait_for(lambda: self.ended is not None, PATIENCE_S, "the application to end")
        wait_for(lambda: not self.master().is_alive(), PATIENCE_S, "its master to end")
        ended = read_json(self.shared / RESULTS / ENDED_FILE)
        assert ended is not None and ended["state"] == "finished", ended
        found = read_json(self.shared / RESULTS / "report.json")
        assert found is not None
        return dict(found)

    # ---- what happens to it

    def begin_attempt(self) -> None:
        """Start a job master, on the first node that works."""
        with self.lock:
            am, nm = self.clients()
            attempt = self.attempt
            self._sides[("am", attempt)], self._sides[("nm", attempt)] = am, nm
            node = next(node for node in self.capacity if node not in self._unusable)
            host = node.partition(":")[0]
            place = {
                "address": self._address,
                "attempt": attempt,
                "shared": str(self.shared),
                "host": host,
                "traps": self._traps,
                "dies_at_end": self._dies_at_end,
                "submitted_s": self._submitted_s,
            }
            self._launch(f"am-{attempt}", node, "tests.fakes.yarn_am:main", {PLACE: json.dumps(place)})

    def expire_attempt(self) -> None:
        """Give the attempt up, as where its master is silent; the next is begun by :meth:`begin_attempt`."""
        with self.lock:
            self.attempt += 1

    def kill_node(self, node: str, *, with_containers: bool) -> None:
        """Kill a node's process (SIGKILL); what the cluster makes of it comes with :meth:`lose_node`."""
        self.cut_off(node)
        self._nodes[node].kill()
        self._nodes[node].wait(PATIENCE_S)
        if with_containers:
            kill_all([self.processes[name] for name, where in self._where.items() if where == node])

    # ---- nodes

    def _start_node(self) -> subprocess.Popen[bytes]:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        return subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.yarn_node"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            cwd=ROOT,
        )

    def _launch(self, name: str, node: str, entry: str, env: dict[str, str], words: Sequence[str] = ()) -> None:
        folder = self._folder / "containers" / name
        folder.mkdir(parents=True)
        (folder / JOB).symlink_to(self._folder / "localized")
        self._where[name] = node
        self._order(node, start=name, folder=str(folder), entry=entry, env=env, words=list(words))

    def _order(self, node: str, **order: Any) -> None:
        pipe = self._nodes[node].stdin
        assert pipe is not None
        # One that was killed reads no more.
        with suppress(OSError, ValueError):
            pipe.write(json.dumps(order).encode() + b"\n")
            pipe.flush()

    def _begun(self, container: FakeContainer) -> None:
        assert container.launch is not None
        grant, module = container.grant, "eps.cluster.yarn.container"
        # What the shell would do with the rest is the node's affair.
        command, _, words = container.launch.command.partition(" 1>")[0].partition(f" -m {module}")
        assert command, container.launch.command
        self._launch(grant.container, grant.node, f"{module}:main", dict(container.launch.env), words.split())

    def _over(self, container: str) -> None:
        if container in self._where:
            self._order(self._where[container], stop=container)

    def _hear(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said = json.loads(line)
            name = said.get("container", "")
            with self.lock:
                if said["what"] == "began":
                    self.processes[name] = Process.of(said["pid"])
                elif said["what"] == "ended":
                    self.statuses[name] = said["status"]
                    self._complete(name, said["status"])
                    if name == f"am-{self.attempt}" and self.ended is None and self.goes_on:
                        self.begin_attempt()

    # ---- the application master's side

    def _accept(self) -> None:
        while (connection := self._listener.accept()) and self.goes_on:
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
        connection.close()

    def _serve(self, connection: Connection) -> None:
        with suppress(EOFError, OSError), connection:
            side = self._sides[connection.recv()]
            while True:
                name, args, kwargs = connection.recv()
                try:
                    found = True, getattr(side, name)(*args, **kwargs)
                except Exception as error:
                    found = False, error
                connection.send(found)


def wake(process: Process) -> None:
    """Let a process go on that was stopped."""
    assert process.send(signal.SIGCONT)
