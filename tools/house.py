"""Measure the structure of the code: files and lines of each package, import cycles, large classes, files that run.

``python -m tools.house`` prints the first three as JSON.  With ``--ways`` it also runs a job of two workers and two
servers under a profiler, adds and kills members, and prints the files that ran in its processes.  A file counts if one
of its functions ran; an import is not enough.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import grimp
import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("eps", "hscheduler")
MOST_METHODS, MOST_ATTRIBUTES = 20, 15

#: sitecustomize module of each Python process of the job; records which files run, in slots of 50 ms.
PROFILER = """
import os, sys, threading, time
folder, root = os.environ["EPS_HOUSE_NOTES"], os.environ["EPS_HOUSE_ROOT"]
names, lock, slot, seen = {}, threading.RLock(), 0, set()
def note(frame, event, arg):
    global slot, seen
    if event != "call" or frame.f_code.co_name == "<module>":
        return
    path = frame.f_code.co_filename
    name = names.get(path)
    if name is None:
        name = names[path] = path[len(root) + 1:] if path.startswith(root + "/eps/") else ""
    if not name:
        return
    now = int(time.time() * 20)
    if now != slot:
        with lock:
            old, found = slot, seen
            slot, seen = now, set()
        if found:
            with open(f"{folder}/{os.getpid()}", "a") as out:
                out.write(f"{old} {' '.join(found)}\\n")
    seen.add(name)
threading.setprofile(note)
sys.setprofile(note)
"""


def sources() -> Iterable[tuple[str, str]]:
    """Yield (path relative to the root, text) of each file that is not generated."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "_pb2" not in path.name:
                yield str(path.relative_to(ROOT)), path.read_text()


def rooms() -> dict[str, dict[str, int]]:
    """Return the number of files and lines of each package."""
    files: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for path, text in sources():
        parts = path.split("/")
        room = ".".join(parts[:2]) if len(parts) > 2 else parts[0]
        for name in (room, f"{parts[0]}, all"):
            files[name] += 1
            lines[name] += text.count("\n")
    return {name: {"files": files[name], "lines": lines[name]} for name in sorted(files)}


def large_classes() -> list[dict[str, Any]]:
    """Return the classes that exceed MOST_METHODS or MOST_ATTRIBUTES, the largest first."""
    found = []
    for path, text in sources():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
                names = {
                    each.attr
                    for each in ast.walk(node)
                    if isinstance(each, ast.Attribute)
                    and isinstance(each.ctx, ast.Store)
                    and isinstance(each.value, ast.Name)
                    and each.value.id == "self"
                }
                names |= {
                    each.target.id
                    for each in node.body
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
                }
                if methods > MOST_METHODS or len(names) > MOST_ATTRIBUTES:
                    found.append({"class": f"{path}:{node.name}", "methods": methods, "attributes": len(names)})
    return sorted(found, key=lambda each: -max(each["methods"], each["attributes"]))


def cycles() -> dict[str, list[list[str]]]:
    """Return the import cycles of files and of packages, including imports inside functions and for types."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    edges = [(name, to) for name in graph.modules for to in graph.find_modules_directly_imported_by(name)]
    between = [(".".join(a.split(".")[:2]), ".".join(b.split(".")[:2])) for a, b in edges]
    return {"files": circles(edges), "rooms": circles([(a, b) for a, b in between if a != b])}


def circles(edges: list[tuple[str, str]]) -> list[list[str]]:
    names = sorted({name for edge in edges for name in edge})
    number = {name: place for place, name in enumerate(names)}
    ends = np.array([(number[a], number[b]) for a, b in edges]).T
    matrix = coo_array((np.ones(len(edges)), ends), shape=(len(names), len(names)))
    _, labels = connected_components(matrix, connection="strong")
    groups = [[names[k] for k in np.flatnonzero(labels == label)] for label in np.flatnonzero(np.bincount(labels) > 1)]
    return sorted(groups, key=len)


def ways() -> dict[str, Any]:
    """Run a job under the profiler; return the files that ran while it trained, was resized and lost members."""
    with tempfile.TemporaryDirectory(prefix="eps-house-") as folder:
        home, notes, first = (Path(folder) / name for name in ("home", "notes", "first"))
        for each in (home, notes, first):
            each.mkdir(mode=0o700)
        (first / "sitecustomize.py").write_text(PROFILER)
        plain = {**os.environ, "EPS_HOME": str(home)}
        profiled = plain | {"EPS_HOUSE_NOTES": str(notes), "EPS_HOUSE_ROOT": str(ROOT), "PYTHONPATH": str(first)}
        job = ["--data", "sklearn:digits", "--model", "softmax", "--workers", "2", "--servers", "2", "--splits", "12"]
        words = ["run", "--name", "house", *job, "--iterations", "100000", "--stretch", "0.005"]
        eps = [sys.executable, "-m", "eps"]
        running = subprocess.Popen(
            [*eps, *words], env=profiled, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

        def call(*more: str) -> str:
            return subprocess.run([*eps, *more], env=plain, cwd=ROOT, capture_output=True, text=True, check=True).stdout

        def status() -> dict[str, Any]:
            try:
                return dict(json.loads(call("status", "house", "--json")))
            except subprocess.CalledProcessError:
                return {"clock": -1, "membership_version": -1}

        def until(holds: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
            end_s = time.monotonic() + 120
            while time.monotonic() < end_s:
                if holds(found := status()):
                    return found
                time.sleep(0.2)
            raise TimeoutError(f"the job did not {what} within 120 s")

        def kill(role: str) -> None:
            pid = next(each["pid"] for each in status()["members"] if each["role"] == role)
            os.kill(pid, signal.SIGKILL)
            time.sleep(6)

        try:
            until(lambda found: found["clock"] > 50, "begin to train")
            spans = {}
            acts: dict[str, Callable[[], object]] = {
                "gradient": lambda: time.sleep(4),
                "add-workers": lambda: call("add-workers", "house", "1"),
                "add-servers": lambda: call("add-servers", "house", "1"),
                "worker killed": lambda: kill("worker"),
                "server killed": lambda: kill("server"),
            }
            for name, act in acts.items():
                begun = time.time()
                act()
                spans[name] = begun, time.time() + 0.3
                time.sleep(2)
        finally:
            subprocess.run([*eps, "kill", "house"], env=plain, cwd=ROOT, capture_output=True, check=False)
            running.wait(60)
        ran: dict[str, set[str]] = {name: set() for name in spans}
        for path in notes.iterdir():
            for line in path.read_text().splitlines():
                slot, *files = line.split()
                for name, (begun, ended) in spans.items():
                    if begun <= int(slot) / 20 + 0.05 and int(slot) / 20 <= ended:
                        ran[name].update(files)
    members = ("eps/worker/", "eps/server/", "eps/net/", "eps/ml/", "eps/data/", "eps/core/worker", "eps/core/server")
    gradient = {file for file in ran["gradient"] if file.startswith(members)}
    every = {"gradient, workers and servers": gradient, **ran}
    return {name: {"files": len(files), "which": sorted(files)} for name, files in every.items()}


def main() -> int:
    """Print the measurements as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tools.house", description=__doc__.splitlines()[0])
    parser.add_argument("--ways", action="store_true", help="also run a job and list the files that ran")
    words = parser.parse_args()
    found: dict[str, Any] = {"rooms": rooms(), "cycles": cycles(), "large_classes": large_classes()}
    if words.ways:
        found["ways"] = ways()
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
