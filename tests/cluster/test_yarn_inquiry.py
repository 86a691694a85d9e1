"""The time after which an application that YARN does not know counts as forgotten."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from eps.errors import JobNotFoundError, PeerUnavailableError
from eps.job.yarn import remote as inquiry
from eps.job.yarn.remote import FORGOTTEN_S, Inquiry
from tests.fakes.yarn_client import ID, FakeYarnClient

KNOWN, UNKNOWN, AWAY = (
    "RUNNING",
    JobNotFoundError("no such application"),
    PeerUnavailableError("no ResourceManager can be reached"),
)


Ask = Callable[[float, Any], Any]


@pytest.fixture
def client() -> FakeYarnClient:
    found = FakeYarnClient()
    found.lists(ID)
    return found


@pytest.fixture
def asked(client: FakeYarnClient) -> Inquiry:
    return Inquiry(client, ID)  # type: ignore[arg-type]


@pytest.fixture
def ask(client: FakeYarnClient, asked: Inquiry, monkeypatch: pytest.MonkeyPatch) -> Ask:
    now_s = 0.0
    monkeypatch.setattr(inquiry, "time", SimpleNamespace(monotonic=lambda: now_s))

    def ask(at_s: float, says: Any) -> Any:
        nonlocal now_s
        now_s, client.said = at_s, [says]
        return asked.report()

    return ask


def test_an_application_is_forgotten_when_yarn_has_not_known_it_for_long_without_a_break(
    ask: Ask, asked: Inquiry
) -> None:
    assert ask(0.0, KNOWN).state == KNOWN
    for at_s in (1.0, FORGOTTEN_S):
        with pytest.raises(JobNotFoundError):
            ask(at_s, UNKNOWN)
        assert asked.is_unknown
    assert ask(FORGOTTEN_S + 0.5, KNOWN).state == KNOWN and not asked.is_unknown
    with pytest.raises(JobNotFoundError):
        ask(100.0, UNKNOWN)
    assert asked.is_unknown
    found = ask(100.0 + FORGOTTEN_S, UNKNOWN)
    assert found.ended and found.diagnostics.startswith("YARN no longer knows the application")
    assert asked.is_unknown, "it may run"


def test_a_resourcemanager_that_was_away_has_as_long_again_to_remember(ask: Ask, asked: Inquiry) -> None:
    """It starts again, and reads its state."""
    with pytest.raises(JobNotFoundError):
        ask(0.0, UNKNOWN)
    for at_s in (1.0, FORGOTTEN_S + 10.0):
        with pytest.raises(PeerUnavailableError):
            ask(at_s, AWAY)
        assert asked.is_unknown, "by its last answer"
    for at_s in (FORGOTTEN_S + 11.0, 2 * FORGOTTEN_S + 10.0):
        with pytest.raises(JobNotFoundError):
            ask(at_s, UNKNOWN)
    assert ask(2 * FORGOTTEN_S + 11.0, UNKNOWN).ended
