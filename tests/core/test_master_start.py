"""The job master until its first membership holds: what it waits for, and when that is given up."""

from __future__ import annotations

from eps.core.events import ContainerGranted, JobState
from eps.core.master_start import START_PATIENCE_S
from tests.core.scripted import ScriptedMaster, starting


def begun(*granted: str) -> ScriptedMaster:
    """Return a job of three workers and two servers that starts, of which only some were granted their containers."""
    master = starting()
    master.request_containers()
    for name in granted:
        master.step(ContainerGranted(master.container_of(name)))
    return master


def test_job_that_starts_says_which_containers_it_waits_for_and_since_when() -> None:
    master = begun("worker-1", "worker-2", "server-1")
    at_once = master.state.start_waits_for(0.5)
    later = master.state.start_waits_for(65.0)
    master.step(ContainerGranted(master.container_of("worker-3")))

    assert at_once == ""
    assert later == "waits for 2 containers, asked for 65 s ago: worker-3, server-2"
    assert master.state.start_waits_for(90.0) == "waits for 1 container, asked for 90 s ago: server-2"
    master.start()
    assert master.state.start_waits_for(90.0) == ""


def test_container_that_was_granted_late_has_all_of_its_time_to_register() -> None:
    master = begun("worker-1", "worker-2", "worker-3", "server-1")
    master.tick(after_s=2 * START_PATIENCE_S)
    master.launch("server-2")
    master.tick(after_s=START_PATIENCE_S / 2)
    patient = master.state.state
    master.tick(after_s=START_PATIENCE_S / 2)

    assert patient is JobState.STARTING
    assert (master.state.state, master.state.reason) == (JobState.FAILED, "server-2 did not register within 300 s")
