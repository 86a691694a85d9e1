"""Snapshots of other versions of the code: read where classes have only gained what has a default, else refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any

import pytest

from eps._version import __version__
from eps.errors import StorageError
from eps.spec.job_spec import JobSpec
from hscheduler.core import events as e
from hscheduler.core import snapshot
from hscheduler.core.jobs import Phase
from hscheduler.core.outstanding import Outstanding
from hscheduler.core.record import DecisionRecord, TrialRecord
from hscheduler.core.resources import Container, Resources, Role
from hscheduler.core.state import Scheduler
from hscheduler.live.journal import EventJournal
from hscheduler.live.known import Known
from hscheduler.live.past import Past
from hscheduler.policies import POLICIES
from hscheduler.service.client import SchedulerClient
from hscheduler.service.directory import ServiceDir
from hscheduler.service.main import Service, ServiceSettings
from tests.hscheduler.toy import Toy, nodes, request

TIMEOUT_S = 20.0
#: What objects of each kind have in a snapshot of version 1.
KINDS_FILE = Path(__file__).with_name("snapshot_kinds.json")


def as_json(value: Any) -> dict[str, Any]:
    return dict(json.loads(json.dumps(value)))


def without(taken: dict[str, Any], kind: str, *names: str) -> dict[str, Any]:
    """Return a snapshot as code took it in which a kind of object had not so much."""
    at = [taken["kinds"][kind].index(name) for name in names]

    def cut(value: Any) -> Any:
        if isinstance(value, list):
            return [cut(each) for each in value]
        if not isinstance(value, dict):
            return value
        if value.get("object", [""])[0] == kind:
            _, *parts = value["object"]
            return {"object": [kind, *(cut(part) for k, part in enumerate(parts) if k not in at)]}
        return {key: cut(each) for key, each in value.items()}

    kinds = {**taken["kinds"], kind: [name for name in taken["kinds"][kind] if name not in names]}
    return {**taken, "kinds": kinds, "value": cut(taken["value"])}


def toy_of(policy: str) -> Toy:
    toy = Toy.of(2, POLICIES[policy])
    toy.submit(request("a"))
    toy.settle()
    toy.send(e.Iterated("a", 3, (0.5,)))
    toy.submit(request("b"))
    return toy


def of_before(taken: dict[str, Any]) -> dict[str, Any]:
    """Return a snapshot as the first code took it: without a number, and with fields that came later left out."""
    found = without(without(taken, "Job", "loss", "members", "failed_shrinks"), "JobRequest", "restart_s")
    del found["version"]
    return found


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_what_classes_have_gained_has_its_default_and_the_rest_is_as_it_was(policy: str) -> None:
    toy = toy_of(policy)
    assert set(toy.job("a").members) == set()
    older = of_before(as_json(snapshot.take(toy.scheduler)))
    restored: Scheduler = snapshot.restore(older, {"_policy": POLICIES[policy]})
    job = restored.jobs["a"]
    assert (job.loss, job.members, job.failed_shrinks, job.request.restart_s) == (None, {}, 0, 0.0)
    assert job.members is not restored.jobs["b"].members, "each has its own"
    again, before = (
        Toy(restored, lots=toy.lots, living=deepcopy(toy.living), answers=list(toy.answers)),
        len(toy.commands),
    )
    for each in (toy, again):
        each.settle()
        each.send(e.FeedbackGiven("a", 0.5))
        each.submit(request("c"))
        each.send(e.JobEnded("b", Phase.FINISHED, loss=0.25))
        each.settle()
    assert again.commands == toy.commands[before:] and again.commands
    assert [str(each) for each in restored.ledger.all()] == [str(each) for each in toy.scheduler.ledger.all()]


@pytest.fixture
def begun_anew(world: object, tmp_path: Path) -> Iterator[tuple[ServiceDir, Callable[[Any], None]]]:
    """A service that is gone with a job that runs, and what lets its journal begin with a changed snapshot."""
    directory = ServiceDir(tmp_path / "service")
    with Service(directory, ServiceSettings(nodes=2)) as service:
        with SchedulerClient(directory) as client:
            client.submit_job("t1", JobSpec(workers=2, servers=1))
        service.leave()

    def change(changed: Callable[[dict[str, Any]], None]) -> None:
        scheduler = service.scheduler
        taken = as_json(scheduler._known().snapshot())
        changed(taken)
        with EventJournal(directory.journal) as journal:
            assert journal.header is not None
            journal.begin_anew(journal.header, taken)

    yield directory, change


def test_a_service_goes_on_after_an_upgrade_with_its_running_jobs(
    begun_anew: tuple[ServiceDir, Callable[[Any], None]],
) -> None:
    directory, change = begun_anew

    def older(taken: dict[str, Any]) -> None:
        taken["core"] = of_before(taken["core"])
        del taken["written_by"]

    change(older)
    with Service(directory, ServiceSettings()) as service, SchedulerClient(directory) as client:
        assert client.job("t1")["phase"] == "early feedback" and client.job("t1")["workers"] == 2
        service.scheduler._events.put(e.JobEnded("t1", Phase.FINISHED, loss=0.5))
        service.scheduler.settle(TIMEOUT_S)
        assert client.job("t1")["loss"] == 0.5


def raised(taken: dict[str, Any]) -> None:
    taken["core"]["version"] = 2
    taken["written_by"] = "7.0"


def with_more(taken: dict[str, Any]) -> None:
    taken["core"]["kinds"]["Job"].append("colour")


def with_less(taken: dict[str, Any]) -> None:
    taken["core"] = without(taken["core"], "JobRequest", "workers", "most_servers")


def with_less_that_follows(taken: dict[str, Any]) -> None:
    taken["core"] = without(taken["core"], "Ledger", "_planned")


def with_others(taken: dict[str, Any]) -> None:
    taken["core"]["kinds"]["Spaceship"] = ["crew"]
    del taken["written_by"]


@pytest.mark.parametrize(
    ("changed", "told", "by"),
    (
        (raised, "it is a snapshot of version 2, but must be of 1", "7.0"),
        (with_more, "of version 1, as this code takes them, but of a Job with colour", __version__),
        (with_less, "of version 1, as this code takes them, but of a JobRequest without workers, most_", __version__),
        (
            with_less_that_follows,
            "of version 1, as this code takes them, but of a Ledger without _planned",
            __version__,
        ),
        (with_others, "of version 1 with a Spaceship, which this code does not know", ""),
    ),
)
def test_a_snapshot_that_cannot_be_read_is_refused_with_both_versions_and_the_way_out(
    changed: Any, told: str, by: str, begun_anew: tuple[ServiceDir, Callable[[Any], None]]
) -> None:
    directory, change = begun_anew
    change(changed)
    before = directory.journal.read_bytes()
    with pytest.raises(StorageError) as refused:
        Service(directory, ServiceSettings())
    text = str(refused.value)
    wrote = f"eps {by}" if by else "an earlier version"
    assert told in text and f": {wrote} wrote it, and this is eps {__version__}\n" in text
    assert f"or hscheduler serve --forget --state {directory.path} ends these jobs" in text
    assert directory.journal.read_bytes() == before


def test_what_is_past_and_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    past = Past(tmp_path / "past")
    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "VERSION", 2)
        past.keep([], [("sweep", DecisionRecord(0.0, "why", ("a",)))])
    with pytest.raises(StorageError, match="past of sweep 'sweep' cannot be read: it is a snapshot of version 2"):
        past.decisions("sweep")
    past.close()


def test_what_is_given_by_a_default_is_no_other_order() -> None:
    """A journal of before leads to the orders that were given when it was written, though these can say more now."""
    container = Container("c1", "a", Role.MASTER, Resources(1, 1024), "node")
    later = make_dataclass("StartJob", [("more", int, field(default=0))], bases=(e.StartJob,), frozen=True)
    checksums = []
    for order in (e.StartJob("a", (container,), False), later("a", (container,), False), later("a", (), False, 1)):
        outstanding = Outstanding()
        outstanding.take(e.JobStarted("b"), [order])
        checksums.append(outstanding.checksum)
    before, same, other = checksums
    assert before == same != other


def test_who_changes_what_a_snapshot_has_raises_its_version() -> None:
    """Unless dataclasses gain fields with defaults; write the file anew then: the next ones must not lose these."""
    kinds = json.loads(KINDS_FILE.read_text())
    assert snapshot.VERSION == 1, "the file is of version 1"
    assert set(snapshot._KINDS) >= set(kinds)
    for kind, names in kinds.items():
        snapshot._gained(kind, names)
    found = {kind: list(names) for kind, names in sorted(snapshot._NAMES.items())}
    assert kinds == found, f"write {json.dumps(found)} into {KINDS_FILE.name}"


def test_a_field_that_is_gained_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = as_json(snapshot.take(TrialRecord("a", "sweep", 1.5)))

    @dataclass(slots=True)
    class Later(TrialRecord):
        colours: list[str] = field(default_factory=lambda: ["red"])

    monkeypatch.setitem(snapshot._KINDS, "TrialRecord", Later)
    monkeypatch.setitem(snapshot._NAMES, "TrialRecord", (*snapshot._NAMES["TrialRecord"], "colours"))
    monkeypatch.setattr(snapshot, "_DATACLASSES", (*snapshot._DATACLASSES, Later))
    found = snapshot.restore(taken)
    assert isinstance(found, Later) and (found.job_id, found.arrived_s, found.colours) == ("a", 1.5, ["red"])


def test_a_snapshot_says_what_wrote_it() -> None:
    known = Known(Scheduler(nodes(1), POLICIES["static"]))
    assert known.snapshot()["written_by"] == __version__ and known.snapshot()["core"]["version"] == snapshot.VERSION
