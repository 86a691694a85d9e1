"""Set up the peers of ``peers.py``: a virtual environment under the cache folder, and the program for ps-lite.

PyTorch is installed without the packages that only its GPU kernels need at run time (compiler and linear solvers).  The
wheel of the default registry needs the rest, about 4 GB, to load.  A registry of CPU builds, if pip is configured for
one, takes a tenth of that.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent / "peers"
INSTALL_TIMEOUT_S = 1800.0
COMPILE_TIMEOUT_S = 300.0
BASE = ("numpy", "scipy")
#: Requirements of PyTorch that it does not need on a CPU, not even to load.
NOT_NEEDED = ("triton", "cuda-bindings", "setuptools")
NOT_NEEDED_EXTRAS = ("cusolver", "nvtx")


class AbsentError(Exception):
    """A peer is missing on this machine; the text says why."""


@dataclass(frozen=True)
class Environment:
    """The virtual environment of the peers in Python."""

    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    def version(self, package: str) -> str:
        """Return the version of a package; empty if it cannot be imported."""
        code = f"import {package}; print({package}.__version__)"
        found = subprocess.run([self.python, "-c", code], capture_output=True, text=True, timeout=120, check=False)
        return found.stdout.strip().splitlines()[-1] if found.returncode == 0 else ""

    def install(self, *packages: str, dependencies: bool = True) -> None:
        """Install packages.

        Raises
        ------
        AbsentError
            pip failed; the text has its last line.
        """
        flags = ["--quiet", "--disable-pip-version-check", "--no-cache-dir", *([] if dependencies else ["--no-deps"])]
        _checked([str(self.python), "-m", "pip", "install", *flags, *packages], f"pip install {' '.join(packages)}")


def make_environment(cache: Path) -> Environment:
    """Return the environment under ``cache``; create it if missing."""
    environment = Environment(cache / f"environment-{sys.version_info[0]}.{sys.version_info[1]}")
    if not (environment.folder / "ready").is_file():
        cache.mkdir(parents=True, exist_ok=True)
        _checked([sys.executable, "-m", "venv", "--clear", str(environment.folder)], "python -m venv")
        environment.install(*BASE)
        (environment.folder / "ready").touch()
    return environment


def torch_version(environment: Environment) -> str:
    """Install PyTorch if missing and return its version; raises AbsentError."""
    if not environment.version("torch"):
        environment.install("torch", dependencies=False)
        code = "import importlib.metadata as m; print('\\n'.join(m.requires('torch') or []))"
        lines = _checked([str(environment.python), "-c", code], "reading what torch requires").splitlines()
        environment.install(*needed(lines))
    return _imported(environment, "torch")


def ray_version(environment: Environment) -> str:
    """Install Ray if missing and return its version; raises AbsentError."""
    if not environment.version("ray"):
        environment.install("ray")
    return _imported(environment, "ray")


def _imported(environment: Environment, package: str) -> str:
    version = environment.version(package)
    if not version:
        raise AbsentError(f"{package} was installed but cannot be imported")
    return version


def needed(requirements: list[str]) -> list[str]:
    """Return the requirements that PyTorch needs to load, without the GPU's compiler and solvers."""
    chosen = []
    for line in requirements:
        text, _, marker = (part.strip() for part in line.partition(";"))
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[([^]]*)\])?(.*)", text)
        if match is None or "extra ==" in marker or match[1] in NOT_NEEDED:
            continue
        extras = [extra for extra in (match[2] or "").split(",") if extra and extra not in NOT_NEEDED_EXTRAS]
        name = f"{match[1]}[{','.join(extras)}]" if extras else match[1]
        chosen.append(f"{name}{match[3]}{f'; {marker}' if marker else ''}")
    return chosen


def compile_ps_lite(build: Path | None, cache: Path) -> Path:
    """Return the program for ps-lite, compiled against a build of it.

    Parameters
    ----------
    build : Path or None
        ps-lite's own folder after ``make``: ``include/ps/ps.h``, ``build/libps.a``, and ``deps`` unless protobuf and
        ZeroMQ are the system's.

    Raises
    ------
    AbsentError
        The path, the build or a compiler is missing, or the compiler fails.
    """
    if build is None:
        raise AbsentError("no path given: --ps-lite DIR, its folder after make")
    header, library = build / "include" / "ps" / "ps.h", build / "build" / "libps.a"
    for path in (header, library):
        if not path.is_file():
            raise AbsentError(f"{path} is not there: expected ps-lite's folder after make")
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise AbsentError("no C++ compiler (g++, or the one that CXX names)")
    source = SCRIPTS / "ps_lite_lr.cc"
    digest = hashlib.sha256(source.read_bytes() + library.read_bytes()).hexdigest()[:16]
    program = cache / f"ps_lite_lr-{digest}"
    if program.is_file():
        return program
    cache.mkdir(parents=True, exist_ok=True)
    made = program.with_suffix(f".{os.getpid()}")
    deps = build / "deps"
    folders = [f"-L{deps / 'lib'}", f"-Wl,-rpath,{deps / 'lib'}"] if (deps / "lib").is_dir() else []
    command = [compiler, "-O3", "-march=native", "-std=c++17", f"-I{build / 'include'}", f"-I{deps / 'include'}"]
    command += ["-o", str(made), str(source), str(library), *folders, "-lprotobuf-lite", "-lzmq", "-pthread"]
    _checked(command, f"{compiler} {source.name}", COMPILE_TIMEOUT_S)
    made.rename(program)
    return program


def _checked(command: list[str], what: str, timeout_s: float = INSTALL_TIMEOUT_S) -> str:
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise AbsentError(f"{what}: not done after {timeout_s:g} s") from None
    if found.returncode != 0:
        lines = (found.stderr.strip() or found.stdout.strip()).splitlines()
        reason = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "no output")
        raise AbsentError(f"{what} ended with {found.returncode}: {reason}")
    return found.stdout
