"""What import-linter does not see: modules that are imported, or started, by their name in a string."""

from __future__ import annotations

import ast
import configparser
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: The faces, which import what they give when it is first used.
FACES = ("eps", "hscheduler", "eps.cli", "hscheduler.cli")
_NAME = re.compile(r"((?:eps|hscheduler)(?:\.\w+){2,})(?::\w+)?")


def modules() -> dict[str, Path]:
    found = {}
    for package in ("eps", "hscheduler"):
        for path in sorted((ROOT / package).rglob("*.py")):
            found[".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = path
    return found


def floors(contract: str, package: str) -> dict[str, int]:
    """Return room -> how many floors are above it, as the contract says."""
    file = configparser.ConfigParser()
    file.read(ROOT / ".importlinter")
    lines = [line for line in file[f"importlinter:contract:{contract}"]["layers"].splitlines() if line.strip()]
    return {f"{package}.{room.strip()}": depth for depth, line in enumerate(lines) for room in line.split("|")}


def names_in(source: str, known: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = _NAME.fullmatch(node.value)
            if match is not None and match[1] in known:
                yield match[1]


def room_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def breaches(module: str, source: str, known: dict[str, Path], depths: dict[str, int]) -> list[str]:
    """Return what a module names in a string that is neither below it nor of its own room."""
    if module in FACES:
        return []
    here = room_of(module)
    return [
        f"{module} names {name}"
        for name in names_in(source, known)
        if room_of(name) != here
        and name.split(".")[0] == module.split(".")[0]
        and depths[room_of(name)] <= depths[here]
    ]


def test_what_is_named_in_a_string_lies_below() -> None:
    known, depths = modules(), floors("floors", "eps") | floors("hscheduler", "hscheduler")
    # hscheduler stands on eps.
    depths |= {room: depth - len(depths) for room, depth in depths.items() if room.startswith("hscheduler")}
    found = [
        breach
        for module, path in known.items()
        if room_of(module) in depths
        for breach in breaches(module, path.read_text(), known, depths)
    ]
    assert not found, found
    assert breaches("eps.cluster.container", 'RUN = "eps.worker.shell:run"', known, depths)
    assert breaches("eps.master.main", 'RUN = "eps.worker.shell"', known, depths)
    assert not breaches("eps.job.entry_points", 'RUN = "eps.worker.shell:run"', known, depths)


def test_there_are_few_modules_outside_of_the_rooms() -> None:
    for package in ("eps", "hscheduler"):
        loose = [path.name for path in (ROOT / package).glob("*.py")]
        assert len(loose) <= 4, loose


def test_folders_that_share_a_name_with_a_package_hold_no_python() -> None:
    assert not [str(p.relative_to(ROOT)) for top in ("docker", "proto") for p in (ROOT / top).rglob("*.py")]
