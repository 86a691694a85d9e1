"""Who may import whom (style section 9), read from the source; and how long a file may be."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GENERATED = ("eps.pb", "hscheduler.pb")

#: A pure core asks nothing of the outside: no clock, no thread, no socket, no log, no environment, no chance.
IMPURE = frozenset(
    "time threading asyncio socket logging os subprocess random select signal multiprocessing concurrent queue "
    "pathlib io tempfile shutil datetime secrets uuid".split()
)
#: Models and optimizers compute; they may read a user's module, and nothing else of the outside.
IMPURE_FOR_ML = frozenset(
    "time threading asyncio socket logging subprocess random multiprocessing concurrent queue".split()
)
PROCESSES = ("eps.master", "eps.server", "eps.worker", "eps.job.client", "eps.cli")
#: Libraries: they serve the processes and know none of them; ``eps.resources`` speaks to the supervisor.
LIBRARIES = ("eps.core", "eps.ml", "eps.data", "eps.net.arrays", "eps.rpc", "eps.storage", "eps.resources")
#: What an application master on YARN decides, and the values that it decides by.
PURE_YARN = tuple(
    f"eps.cluster.yarn.{name}"
    for name in "advice allocation errors exits facade killed launch names outcome queues room types".split()
)
#: What a cluster of eps devcluster is, as values; they name paths and look at none.
PURE_DEVCLUSTER = tuple(f"eps.cluster.devcluster.{name}" for name in "daemons places pom secure settings sites".split())
#: What is decided of a snapshot of YARN, and the texts that carry it.
PURE_PLANS = tuple(
    f"hscheduler.yarn.{name}" for name in "facts fewest giving_back nodes plan rest snapshot wire".split()
)
SPEAKS_JAVA = ("eps.hadoop.bridge",)
SPEAKS_PROTOBUF = (
    "eps.pb",
    "eps.rpc",
    "eps.net.arrays",
    "eps.server",
    "eps.worker",
    "eps.master",
    "eps.job.ending",
    "eps.job.master_link",
    "eps.cluster.supervisor",
    "eps.job.client",
    "eps.cli",
)


def modules() -> Iterator[tuple[str, Path]]:
    """Yield the name and the path of every module that is written by hand."""
    for package in ("eps", "hscheduler"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            if not within(name, GENERATED):
                yield name, path


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def imports_of(module: str, source: str, *, is_package: bool = False) -> set[str]:
    """Return the absolute names that a module imports, at the top and inside functions; typing-only ones too."""
    found: set[str] = set()
    parts = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])
            # ``from eps.core import messages`` imports the module eps.core.messages.
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return found


def breach(module: str, imported: str) -> str:
    """Return the rule that ``imported`` breaks in ``module``; empty if none."""
    top = imported.split(".")[0]
    if within(module, ("eps",)) and top == "hscheduler":
        return "eps never imports hscheduler"
    # The client is the library that talks to job masters over proto/.
    client = within(module, ("hscheduler.live",)) and within(imported, ("eps.job.client",))
    if within(module, ("hscheduler",)) and within(imported, (*PROCESSES, "eps.cluster.supervisor")) and not client:
        return "hscheduler talks to jobs over proto/, never to their code"
    if within(module, ("hscheduler.core", "hscheduler.policies")):
        if top in ("eps", "hscheduler") and not within(imported, ("hscheduler.core", "hscheduler.policies")):
            return "hscheduler.core and hscheduler.policies import each other only"
        drawn = top == "random" and within(module, ("hscheduler.policies",))
        if top not in ("eps", "hscheduler", *sys.stdlib_module_names) or (top in IMPURE and not drawn):
            return "hscheduler's core asks nothing of the outside; policies may draw lots from a seed"
    if within(module, PURE_PLANS):
        ours = within(imported, (*PURE_PLANS, "hscheduler.core", "hscheduler.policies"))
        if top in IMPURE or (top not in sys.stdlib_module_names and not ours):
            return "what is planned for YARN knows the core and its policies, and asks nothing of the outside"
    if within(module, ("hscheduler.core",)) and within(imported, ("hscheduler.policies",)):
        return "hscheduler.core is given its policy"
    if within(module, ("eps.core",)):
        ours = within(imported, ("eps.core", "eps.errors"))
        if top == "eps" and not ours:
            return "eps.core imports eps.core and eps.errors only"
        if top != "eps" and (top not in sys.stdlib_module_names or top in IMPURE):
            return "eps.core imports only those parts of the standard library that ask nothing of the outside"
    if within(module, ("eps.errors",)) and top == "eps":
        return "eps.errors imports nothing of ours"
    if within(module, ("eps.ml",)):
        if top == "eps" and not within(imported, ("eps.core", "eps.errors", "eps.ml")):
            return "eps.ml imports eps.core, eps.errors and eps.ml only"
        if top != "eps" and top not in (*sys.stdlib_module_names, "numpy", "scipy"):
            return "eps.ml needs numpy and scipy only"
        if top in IMPURE_FOR_ML:
            return "eps.ml computes; it asks nothing of the outside"
    if within(module, PURE_YARN):
        if top == "eps" and not within(imported, (*PURE_YARN, "eps.cluster.api", "eps.errors")):
            return "what is decided about YARN's containers knows values and errors only"
        if top != "eps" and (top not in sys.stdlib_module_names or top in IMPURE - {"signal"}):
            return "what is decided about YARN's containers asks nothing of the outside"
    if within(module, PURE_DEVCLUSTER):
        if top == "eps" and not within(imported, (*PURE_DEVCLUSTER, "eps.errors")):
            return "what a cluster is made of knows values and errors only"
        if top in IMPURE - {"pathlib"}:
            return "what a cluster is made of asks nothing of the outside"
    if top in ("jpype", "java", "org") and not within(module, SPEAKS_JAVA):
        return "the bridge alone starts Java, and calls it"
    if within(module, LIBRARIES) and within(imported, PROCESSES):
        return "a library knows no process"
    if within(module, LIBRARIES[:-1]) and within(imported, ("eps.cluster.supervisor",)):
        return "only eps.resources speaks to the supervisor"
    if within(imported, ("eps.pb",)) and not within(module, SPEAKS_PROTOBUF):
        return "protobuf stays at the edges"
    return ""


def test_no_module_imports_what_its_layer_may_not() -> None:
    breaches = [
        f"{name} imports {imported}: {rule}"
        for name, path in modules()
        for imported in sorted(imports_of(name, path.read_text(), is_package=path.name == "__init__.py"))
        if (rule := breach(name, imported))
    ]
    assert not breaches, "\n".join(breaches)


def test_folders_that_share_a_name_with_a_package_hold_no_python() -> None:
    """Style section 17: ``docker/`` and ``proto/`` must not shadow packages of that name."""
    assert not [str(p.relative_to(ROOT)) for top in ("docker", "proto") for p in (ROOT / top).rglob("*.py")]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("eps.core.planner", "import time"),
        ("eps.core.planner", "import numpy"),
        ("eps.core.planner", "from eps.net.arrays import api"),
        ("eps.core.planner", "from ..van.api import Van"),
        ("eps.core.planner", "def f():\n    from os import path"),
        ("eps.ml.optim", "import eps.storage"),
        ("eps.ml.optim", "import torch"),
        ("eps.net.arrays.api", "from eps import worker"),
        ("eps.cluster.yarn.allocation", "import time"),
        ("eps.cluster.yarn.types", "from eps.storage import api"),
        ("eps.cluster.yarn.resources", "import jpype"),
        ("eps.cluster.yarn.hadoop.master", "import jpype"),
        ("eps.master.main", "from hscheduler import policy"),
        ("eps.storage.journal", "from eps.pb import control_pb2"),
        ("eps.cluster.devcluster.sites", "import os"),
        ("eps.cluster.devcluster.daemons", "from eps.cluster.devcluster.processes import spawn"),
        ("hscheduler.service", "from eps.master.service import Service"),
        ("hscheduler.spec", "from eps.job.client import Job"),
        ("hscheduler.core.state", "import time"),
        ("hscheduler.yarn.plan", "import socket"),
        ("hscheduler.yarn.wire", "from eps.errors import EpsError"),
        ("hscheduler.core.state", "import random"),
        ("hscheduler.core.state", "from hscheduler.policies.elastic import elastic"),
        ("hscheduler.policies.elastic", "from eps.errors import EpsError"),
        ("hscheduler.policies.elastic", "import numpy"),
    ],
)
def test_breach_is_found(module: str, source: str) -> None:
    assert any(breach(module, imported) for imported in imports_of(module, source))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("eps.core.planner", "from eps.core import tables\nfrom eps.errors import PlanError\nimport math"),
        ("eps.core.planner", "from .tables import SplitTable"),
        ("eps.cluster.yarn.exits", "import signal\nfrom eps.cluster.yarn.types import Grant"),
        ("eps.hadoop.bridge", "def start():\n    import jpype"),
        ("eps.ml.optim", "import numpy as np\nfrom scipy import sparse\nfrom eps.core.types import MemberId"),
        ("eps.net.messages.codec", "from eps.pb import control_pb2"),
        ("hscheduler.model", "from eps.core.types import Role"),
    ],
)
def test_what_is_allowed_is_not_a_breach(module: str, source: str) -> None:
    assert not [imported for imported in imports_of(module, source) if breach(module, imported)]
