"""EPS_HOME: whose it must be, and who may write there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import eps.cli
import hscheduler.cli
from eps.errors import ConfigError
from eps.job.client import Job
from eps.system.home import eps_home, make_home, make_private


def test_home_is_eps_home_or_below_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert eps_home({"EPS_HOME": str(tmp_path)}) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert eps_home({}) == tmp_path / ".eps"
    assert eps_home({"EPS_HOME": ""}) == tmp_path / ".eps"
    assert eps_home({"EPS_HOME": "~/x"}) == tmp_path / "x"


@pytest.fixture
def permissive() -> Iterator[None]:
    """A umask that takes nothing away."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.usefixtures("permissive")
def test_a_new_home_is_its_users_alone_whatever_the_umask_is_and_so_is_what_is_made_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, make in (("first", make_home), ("second", lambda: make_private(eps_home() / "jobs" / "x"))):
        monkeypatch.setenv("EPS_HOME", str(tmp_path / name / "home"))
        make()
        assert [mode_of(folder) for folder in (tmp_path / name, eps_home())] == [0o700, 0o700]
    assert mode_of(eps_home() / "jobs") == mode_of(eps_home() / "jobs" / "x") == 0o700


def everything(home: Path) -> list[str]:
    return sorted(str(path) for path in home.rglob("*"))


#: Commands that look for something in the home, and commands that write there.
COMMANDS = [
    *(("eps", words) for words in ("list", "status a", "logs a", "kill a", "add-workers a 1", "cancel a")),
    *(("eps", words) for words in ("resume a", "prune --all", "run --data sklearn:iris --model softmax")),
    *(("hscheduler", words) for words in ("jobs", "why a", "kill a", "serve", "sweeps")),
]


@pytest.mark.parametrize(("program", "words"), COMMANDS)
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_home_that_others_can_write_is_refused_by_every_command_and_nothing_is_written_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    program: str,
    words: str,
    mode: int,
) -> None:
    home = tmp_path / "home"
    (home / "jobs" / "a").mkdir(parents=True)
    (home / "jobs" / "a" / "token").write_text("known to somebody else")
    home.chmod(mode)
    monkeypatch.setenv("EPS_HOME", str(home))
    (tmp_path / "core-site.xml").write_text("<configuration></configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    before = everything(home)
    main = eps.cli.main if program == "eps" else hscheduler.cli.main
    assert main(words.split()) == 2
    told = capsys.readouterr().err
    assert f"EPS_HOME is {home}, which others can write (mode {mode:o}), but " in told
    assert f"chmod go-w {home}" in told
    assert everything(home) == before


def test_a_home_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPS_HOME", str(tmp_path))
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    for refuse in (eps_home, make_home, lambda: Job.find("a"), lambda: Job.start(data="sklearn:iris", model="softmax")):
        with pytest.raises(ConfigError, match=f"{tmp_path}, .* user {user}"):
            refuse()


def test_a_home_may_be_reached_over_a_link_of_its_user_in_a_shared_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o1777)
    home, link = tmp_path / "home", tmp_path / "link"
    home.mkdir(0o755)
    link.symlink_to(home)
    assert eps_home({"EPS_HOME": str(link)}) == link
    home.chmod(0o775)
    with pytest.raises(ConfigError, match=r"mode 775"):
        eps_home({"EPS_HOME": str(link)})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to another user")
def test_a_home_behind_a_link_of_another_user_is_refused(tmp_path: Path) -> None:
    home, link = tmp_path / "home", tmp_path / "link"
    home.mkdir(0o700)
    link.symlink_to(home)
    os.lchown(link, 65534, 65534)
    with pytest.raises(ConfigError, match="link of user 65534"):
        eps_home({"EPS_HOME": str(link)})


@pytest.mark.parametrize("name", ["jobs", "cache", "hscheduler", "sweeps"])
def test_a_folder_of_the_home_that_others_can_change_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Else a job of theirs would be resumed, or a service of theirs believed."""
    monkeypatch.setenv("EPS_HOME", str(tmp_path))
    (tmp_path / name).mkdir()
    assert eps_home() == tmp_path
    (tmp_path / name).chmod(0o777)
    for main, words in ((eps.cli.main, ["list"]), (hscheduler.cli.main, ["jobs"])):
        assert main(words) == 2
    with pytest.raises(ConfigError, match=f"{name} in EPS_HOME"):
        eps_home()


def test_a_service_of_a_directory_that_others_can_change_is_neither_started_nor_believed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)
    for words in (["serve"], ["jobs"], ["kill", "a"]):
        assert hscheduler.cli.main([*words, "--state", str(tmp_path / "state")]) == 2
    assert list((tmp_path / "state").iterdir()) == []
