"""What the plugin in a ResourceManager is answered over HTTP, and how job masters are asked."""

from __future__ import annotations

import dataclasses
import http.client
import socket
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from eps.errors import ConfigError, PeerUnavailableError, StorageError
from hscheduler.cli import build_parser
from hscheduler.cli.commands.yarn_plugin import yarn_plugin
from hscheduler.core.resources import Role
from hscheduler.live.yarn_facts import MasterFacts, view_of
from hscheduler.yarn.endpoint import PluginServer, planner_with
from hscheduler.yarn.facts import Facts
from hscheduler.yarn.preemption import check_preemption
from hscheduler.yarn.secret import secret_of
from hscheduler.yarn.snapshot import Application, Plan, Snapshot
from hscheduler.yarn.wire import PROOF, parse_plan, proof_of_answer, proof_of_request, snapshot_text
from tests.fakes.resourcemanager import resourcemanager
from tests.hscheduler.yarn_world import container, facts, running, snapshot, waiting

SECRET = b"not told"
TIMEOUT_S = 20.0


def post(
    server: PluginServer, body: bytes, proof: str | None = None, path: str = "/plan"
) -> tuple[int, str | None, bytes]:
    """Return (status, proof, text) of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", path, body, {PROOF: proof_of_request(SECRET, body) if proof is None else proof})
        answer = connection.getresponse()
        return answer.status, answer.getheader(PROOF), answer.read()
    finally:
        connection.close()


class FakeFacts:
    """Facts that a test gives."""

    def __init__(self, *known: tuple[Application, Facts]) -> None:
        self._known = {job.application_id: told for job, told in known}

    def of(self, application: Application) -> Facts | None:
        """See :class:`hscheduler.yarn.facts.JobFacts`."""
        return self._known.get(application.application_id)


def test_plan_comes_with_a_proof_and_its_sentences_are_told_once() -> None:
    job = running(1, {"n1:1": 4})
    found, told = snapshot(job, waiting(2)), []
    with PluginServer(planner_with(FakeFacts((job, facts(job)))), SECRET, tell=told.append) as server:
        for number in (1, 2):
            body = snapshot_text(dataclasses.replace(found, taken_ms=number))

            def answered(body: bytes = body, number: int = number) -> bool:
                status, proof, text = post(server, body)
                if status == 503:
                    return False
                assert proof == proof_of_answer(SECRET, proof_of_request(SECRET, body), text)
                assert parse_plan(text).takes == (container(1, 5),)
                return parse_plan(text).taken_ms == number

            _until(answered)
    assert len(told) == 1
    assert "gives 1 worker" in told[0]


def test_stranger_and_what_is_no_snapshot_get_no_plan() -> None:
    body = snapshot_text(snapshot())
    with PluginServer(planner_with(FakeFacts()), SECRET) as server:
        assert post(server, body, proof_of_request(b"guessed", body))[:2] == (403, None)
        assert post(server, body, "\xe9")[:2] == (403, None)
        assert post(server, b"end\n")[:2] == (400, None)
        assert post(server, body, path="/other")[:2] == (404, None)
        _until(lambda: post(server, body)[0] == 200)


def test_who_plans_for_long_keeps_nobody_waiting_and_an_older_plan_says_so() -> None:
    go_on, began = threading.Event(), threading.Event()

    def planner(found: Snapshot) -> Plan:
        if found.taken_ms > 1:
            began.set()
            assert go_on.wait(TIMEOUT_S)
        if found.taken_ms == 3:
            raise RuntimeError("it fails")
        return Plan(found.instance, found.taken_ms)

    def at(taken_ms: int, instance: str = "life") -> tuple[int, bytes]:
        body = snapshot_text(dataclasses.replace(snapshot(), taken_ms=taken_ms, instance=instance))
        status, _, text = post(server, body)
        return status, text

    with PluginServer(planner, SECRET) as server:
        try:
            _until(lambda: at(1)[0] == 200)
            started = time.monotonic()
            status, text = at(2)
            assert time.monotonic() - started < TIMEOUT_S / 4
            assert (status, parse_plan(text).taken_ms) == (200, 1)
            assert began.wait(TIMEOUT_S)
            # Another ResourceManager is told nothing that was meant for the one before.
            assert at(9, "next life")[0] == 503
        finally:
            go_on.set()
        # A failure ends nothing.
        at(3)
        _until(lambda: at(4)[1].startswith(b"hscheduler-plan\t1\nat\tlife\nat\t4\n"))


def _until(holds: Any) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline


def test_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(ConfigError, match="cannot listen on"):
            PluginServer(planner_with(FakeFacts()), SECRET, port=taken.getsockname()[1])


# ---- facts


def status(**changes: object) -> dict[str, object]:
    """Return a status as a job master tells it."""
    members = [
        {"name": "server-1", "role": "server", "container": "container-0002"},
        {"name": "worker-1", "role": "worker", "container": "container-0003"},
        {"name": "worker-2", "role": "worker", "container": "local"},
    ]
    return {"state": "running", "clock": 100, "plan": None, "queued": [], "members": members} | changes


def test_job_masters_say_what_yarn_does_not_know() -> None:
    job = running(1, {"n1:1": 3})
    asked: list[str] = []

    def ask(application: Application) -> dict[str, object]:
        asked.append(application.name)
        return status()

    assert MasterFacts(100, ask).of(job) == Facts(
        True, {container(1, 2): Role.SERVER, container(1, 3): Role.WORKER}, True
    )
    assert asked == ["job-1"]
    assert MasterFacts(100, ask).of(waiting(2)) is None
    assert MasterFacts(101, ask).of(job) == Facts(
        False, {container(1, 2): Role.SERVER, container(1, 3): Role.WORKER}, True
    )


GROWS = {"plan_id": 3, "operation": "add-workers", "phase": "proposed", "asked_by": "user", "removed": [], "added": []}
SHRINKS = {"plan_id": 4, "operation": "remove-workers", "phase": "queued", "asked_by": "user", "removed": ["worker-1"]}


@pytest.mark.parametrize(
    ("changes", "growth"),
    [
        ({"plan": GROWS}, (3,)),
        ({"queued": [SHRINKS]}, ()),
        ({"plan": GROWS, "queued": [SHRINKS]}, ()),
        ({"plan": {**GROWS, "phase": "committed"}}, ()),
        ({"plan": {**GROWS, "asked_by": "job"}}, ()),
    ],
)
def test_job_whose_size_changes_is_not_asked_for_more(changes: dict[str, object], growth: tuple[int, ...]) -> None:
    found = MasterFacts(1, lambda application: status(**changes)).view(running(1, {}))
    assert found is not None
    assert not found.facts.may_shrink
    assert found.growth == growth, "what can be withdrawn before it shrinks"


def regain(plan_id: int, phase: str, reason: str = "", *added: str) -> dict[str, object]:
    """Return a change by which a job has something again."""
    told = {"plan_id": plan_id, "phase": phase, "reason": reason, "added": list(added), "removed": []}
    return {**told, "operation": "add-workers", "asked_by": "queue"}


def test_what_a_job_is_owed_and_asks_for_again_is_told() -> None:
    job = running(1, {"n1:1": 3})
    members = [
        {"name": "server-1", "role": "server", "container": "container-0002", "granted": container(1, 2)},
        {"name": "worker-1", "role": "worker", "container": "container-0003", "granted": container(1, 3)},
        {"name": "worker-5", "role": "worker", "container": "container-0009", "granted": container(1, 4)},
        {"name": "worker-6", "role": "worker", "container": "container-0010", "granted": ""},
    ]
    ended = [regain(2, "released"), regain(3, "aborted", "first"), regain(5, "aborted", "not granted"), SHRINKS]
    found = view_of(
        status(members=members, lent={"worker": 2, "server": 0}, labels={"worker": "fast"}, changes=ended)
        | {"plan": regain(6, "proposed", "", "worker-5", "worker-6"), "queued": [regain(8, "queued")]},
        job,
        100,
    )
    assert found is not None
    assert found.facts.lent == {Role.WORKER: 2} and found.facts.labels == {Role.WORKER: "fast"}
    assert found.growth == (6, 8) and found.regains == (6, 8)
    assert found.coming == {container(1, 4)}, "it goes with the change"
    assert (found.in_vain, found.latest_change) == ((2, "not granted"), 8)
    granted = view_of(status(members=members, plan=regain(6, "proposed", "", "worker-5")), job, 100)
    assert granted is not None and granted.growth == (6,) and not granted.regains, "nothing of it stands any more"
    assert not granted.facts.lent and granted.in_vain == (0, "")


def test_containers_are_matched_by_yarns_names_where_a_master_tells_them() -> None:
    job = running(1, {"n1:1": 4})
    members = [
        {"name": "server-1", "role": "server", "container": "container-0099", "granted": container(1, 2)},
        {"name": "worker-1", "role": "worker", "container": "container-0098", "granted": container(1, 3)},
        {"name": "worker-2", "role": "worker", "container": "container-0097", "granted": container(1, 4)}
        | {"evicted_in_s": 7.5},
        {"name": "worker-3", "role": "worker", "container": "container-0096", "granted": ""},
    ]
    found = view_of(status(members=members, queued=[SHRINKS], manager="M"), job, 100)
    assert found is not None
    names = {container(1, 2): "server-1", container(1, 3): "worker-1", container(1, 4): "worker-2"}
    assert found.members == names
    assert found.leaving == {container(1, 3), container(1, 4), container(1, 5)}, "in the last is nobody any more"
    assert found.manager == "M"


def test_job_that_starts_says_so() -> None:
    found = MasterFacts(0, lambda application: status(state="starting", clock=0)).of(running(1, {}))
    assert found == Facts(True, {}, may_shrink=False, starting=True)


def test_what_is_no_status_is_no_view() -> None:
    assert MasterFacts(1, lambda application: {"state": "running"}).of(running(1, {})) is None


def test_master_that_does_not_answer_is_unknown() -> None:
    def ask(application: Application) -> dict[str, object]:
        raise PeerUnavailableError("silent")

    assert MasterFacts(1, ask).of(running(1, {})) is None
    assert MasterFacts(1, lambda application: status(state="finished")).of(running(1, {})) is None


# ---- the secret, and YARN's own preemption


def test_secret_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    secret = secret_of(path)
    assert len(secret) == 32
    assert secret_of(path) == secret
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    with pytest.raises(StorageError, match="others may read the secret: chmod 600"):
        secret_of(path)
    with pytest.raises(StorageError, match="is a folder, but must be a file with the secret"):
        secret_of(tmp_path)
    path.chmod(0o600)
    path.write_text("\n")
    with pytest.raises(StorageError, match="is empty"):
        secret_of(path)
    with pytest.raises(StorageError, match="cannot be made"):
        secret_of(tmp_path / "no" / "secret")


def scheduler(**queues: bool | None) -> dict[str, object]:
    """Return what a ResourceManager says of queues below ``root.research``."""
    entries = [{"queueName": name, "preemptionDisabled": disabled} for name, disabled in queues.items()]
    research = {"queueName": "research", "preemptionDisabled": False, "queues": {"queue": entries}}
    # Where there is one queue, some releases leave out the list.
    info = {"queueName": "root", "queues": {"queue": research}}
    return {"scheduler": {"schedulerInfo": info}}


def test_queue_of_which_yarns_own_preemption_is_off_is_taken() -> None:
    check_preemption(["eps", "root.research.eps"], scheduler(eps=True, other=False))


@pytest.mark.parametrize("disabled", [False, None])
def test_queue_that_yarn_preempts_from_is_told_with_what_to_set(disabled: bool | None) -> None:
    with pytest.raises(ConfigError, match=r"set yarn\.scheduler\.capacity\.root\.research\.eps\.disable_preemption to"):
        check_preemption(["eps"], scheduler(eps=disabled))


def test_unknown_queue_is_told() -> None:
    with pytest.raises(ConfigError, match=r"queue is 'nope', but YARN has root\.research, root\.research\.eps"):
        check_preemption(["nope"], scheduler(eps=True))


def test_the_plugins_command_asks_as_all_others_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It goes past a proxy of the environment, which is for the world outside, and to the active ResourceManager."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    words = ["yarn-plugin", "--listen=127.0.0.1:0", f"--secret-file={tmp_path / 'secret'}", "--queue=eps"]
    with resourcemanager() as standby, resourcemanager() as active:
        standby.standby = True
        active.answers["GET scheduler"] = (200, scheduler(eps=False))
        words += [f"--resource-manager={rm.url}" for rm in (standby, active)]
        with pytest.raises(ConfigError, match="would fight with H-scheduler's"):
            yarn_plugin(build_parser().parse_args(words))
    assert [path for _, path, _, _ in active.asked] == ["scheduler"]
