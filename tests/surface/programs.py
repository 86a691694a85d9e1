"""Both programs as users run them, and what is asked of what they write."""

from __future__ import annotations

import io
import os
import select
import subprocess
import sysconfig
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple

import eps.cli
import hscheduler.cli

#: Far above what anything here takes, on a busy machine, too.
DEADLINE_S = 120.0
_MAINS: dict[str, Callable[[Sequence[str]], int]] = {"eps": eps.cli.main, "hscheduler": hscheduler.cli.main}


class Ended(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str


def call(program: str, words: Sequence[str]) -> Ended:
    """Run a command in this process, which takes milliseconds where it starts no job."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = _MAINS[program](words)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
    return Ended(code, out.getvalue(), err.getvalue())


def begin(program: str, *words: str | Path, cwd: Path | None = None) -> subprocess.Popen[str]:
    """Start the installed program as a process; whoever calls this waits for it."""
    return subprocess.Popen(
        [str(Path(sysconfig.get_path("scripts"), program)), *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
    )


def end(process: subprocess.Popen[str], number: int | None = None) -> Ended:
    """Wait for the end of a process, after a signal if one is given; kill it at the deadline."""
    try:
        if number is not None:
            process.send_signal(number)
        out, err = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return Ended(process.returncode, out, err)


def run(program: str, *words: str | Path, cwd: Path | None = None) -> Ended:
    """Run the installed program to its end."""
    return end(begin(program, *words, cwd=cwd))


def read_line(process: subprocess.Popen[str], text: str) -> str:
    """Return the first line of a process's standard output that has ``text`` in it."""
    assert process.stdout is not None
    end_s = time.monotonic() + DEADLINE_S
    seen = ""
    while text not in seen.rpartition("\n")[2]:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, end_s - time.monotonic()))
        # One byte at a time: what is buffered is not seen by select.
        byte = os.read(process.stdout.fileno(), 1) if ready else b""
        assert byte, f"{text!r} did not come: {seen[-2000:]}"
        seen += byte.decode()
    return seen.rpartition("\n")[2] + process.stdout.readline()


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Ask again and again until something holds."""
    end_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end_s, f"waited {DEADLINE_S:g} s for {what}"
        select.select([], [], [], 0.02)


def processes_of(home: Path) -> list[int]:
    """Return the processes whose command line or environment names ``home``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                told = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(home).encode() in told:
                found.append(int(entry.name))
    return found


def misfits(shape: Any, value: Any, where: str = "") -> list[str]:
    """Return where a JSON document is not of the shape of :mod:`tests.surface.table_files`."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return [f"{where}: {value!r} is no object"]
        missing = [f"{where}: no key {key!r}" for key in shape if key not in value]
        return missing + [m for key in shape if key in value for m in misfits(shape[key], value[key], f"{where}.{key}")]
    if isinstance(shape, list | tuple):
        if not isinstance(value, list) or len(value) < len(shape):
            return [f"{where}: {value!r} is no list of {len(shape)} or more"]
        each = [*shape] * len(value) if isinstance(shape, list) else shape
        return [
            m
            for k, (part, item) in enumerate(zip(each, value, strict=False))
            for m in misfits(part, item, f"{where}[{k}]")
        ]
    wanted = shape.__args__ if isinstance(shape, UnionType) else (shape,)
    accepted = {int, float} if float in wanted and type(value) is int else {type(value)}
    return [] if accepted & set(wanted) else [f"{where}: {value!r} is not of type {shape}"]
