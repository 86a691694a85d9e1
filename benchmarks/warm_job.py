"""Jobs whose job master is already imported and forked, and waits for a signal of the benchmark.

So a stop-and-restart is not charged for starting Python: its containers come from a warm pool, like those of a change
of size.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from eps.cluster.supervisor.process import MASTER, PRELOAD, ContainerContext
from eps.cluster.supervisor.start import WarmSupervisor
from eps.data.cut import prepare
from eps.data.dataset import DatasetInfo
from eps.errors import DeadlineError, ResourceError
from eps.job.entry_points import ENTRY_POINTS
from eps.job.launch import data_settings, shape_of
from eps.spec.job_spec import JobSpec
from eps.spec.model_file import read_model
from eps.spec.runtime import Runtime, settled
from eps.storage.jobdir import JobDir, cache_dir, create_job_dir

ENTRY_POINT = "benchmarks.warm_job:run_when_told"
_GO_FIFO = "go"
_STARTED_FILE = "started.json"
WARM_DEADLINE_S = 60.0
SAMPLE_S = 0.25


def run_when_told(context: ContainerContext) -> int:
    """Entry point of the job master's process: wait for the signal, record the time, run the job master."""
    from eps.master.main import run

    with open(context.job_dir / _GO_FIFO, "rb") as go:
        go.read(1)
    (context.job_dir / _STARTED_FILE).write_text(json.dumps({"monotonic_s": time.monotonic()}))
    return run(context)


class WarmJob:
    """A job with a warm job master.

    Parameters
    ----------
    name : str
        Name of the job under ``EPS_HOME``, which the caller has set.
    """

    def __init__(self, name: str) -> None:
        self.job_dir, lock = create_job_dir(name)
        os.mkfifo(self.job_dir.path / _GO_FIFO)
        with lock:
            warm = WarmSupervisor(
                {**ENTRY_POINTS, MASTER: ENTRY_POINT},
                options=["--preload", ",".join((*PRELOAD, "benchmarks.warm_kernels"))],
            )
            self._handle = warm.give(self.job_dir.path, tied=True, lock=lock)
        self._go_fd = self._wait_until_warm()
        self._memory = _MemorySampler(self._handle.pid)

    def _wait_until_warm(self) -> int:
        deadline = time.monotonic() + WARM_DEADLINE_S
        while time.monotonic() < deadline:
            if self._handle.poll() is not None:
                raise ResourceError(f"the supervisor of {self.job_dir.name} ended before its job began")
            try:
                # This succeeds once the job master has opened the other end.
                return os.open(self.job_dir.path / _GO_FIFO, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
            time.sleep(0.01)
        raise DeadlineError(f"the job master of {self.job_dir.name} was not warm within {WARM_DEADLINE_S:g} s")

    def go(self, settings: Mapping[str, Any], init: Path | None = None) -> None:
        """Start the training, from an exported model if given."""
        spec = JobSpec.from_dict({**settings, "init": str(init) if init else ""})
        runtime = make_runtime(self.job_dir, spec)
        if init is not None:
            start = runtime.key_space.pack(read_model(init).tensors)
            np.save(self.job_dir.initial, start)
        self.job_dir.note(runtime=runtime.to_values())
        os.write(self._go_fd, b"g")
        os.close(self._go_fd)

    def wait(self, timeout_s: float) -> dict[str, Any]:
        """Return the report of the job once all its processes have ended.

        Raises
        ------
        ResourceError
            The job failed.
        """
        code = self._handle.wait(timeout_s)
        if code != 0:
            ended = self.job_dir.ended()
            reason = "" if ended is None else ended.reason
            raise ResourceError(f"job {self.job_dir.name} failed with exit code {code}: {reason}")
        report: dict[str, Any] = json.loads(self.job_dir.report.read_text(encoding="utf-8"))
        return report

    @property
    def started_s(self) -> float:
        """Start of the job master on the machine's monotonic clock, from which times of the report count."""
        values = json.loads((self.job_dir.path / _STARTED_FILE).read_text(encoding="utf-8"))
        return float(values["monotonic_s"])

    @property
    def peak_memory_bytes(self) -> int:
        """Largest observed sum of the memory of the job's processes, in bytes."""
        return self._memory.peak_bytes

    def close(self) -> None:
        """End the job if it still runs."""
        self._memory.stop()
        self._handle.close()


def prepare_data(spec: JobSpec) -> DatasetInfo:
    """Return the job's data set, cut into splits."""
    return prepare(data_settings(spec), cache_dir())


def make_runtime(job_dir: JobDir, spec: JobSpec) -> Runtime:
    """Return the runtime of a job."""
    info = prepare_data(spec)
    shape = shape_of(info)
    spec = settled(spec, shape.num_features, shape.num_outputs)
    return Runtime(job_dir.name, spec, shape, info.directory, job_dir.path)


class _MemorySampler:
    """Samples the memory of a supervisor's children every :data:`SAMPLE_S`; shared memory is counted once."""

    def __init__(self, parent_pid: int) -> None:
        self._parent_pid = parent_pid
        self.peak_bytes = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        children = Path(f"/proc/{self._parent_pid}/task/{self._parent_pid}/children")
        while not self._stopped.wait(SAMPLE_S):
            try:
                pids = children.read_text(encoding="ascii").split()
            except OSError:
                return
            self.peak_bytes = max(self.peak_bytes, sum(_memory_bytes(pid) for pid in pids))

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(5.0)


def _memory_bytes(pid: str) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    line = next((line for line in text.splitlines() if line.startswith("Pss:")), "Pss: 0 kB")
    return int(line.split()[1]) * 1024
