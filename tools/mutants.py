"""Mutation testing of the pure packages, on a seeded sample: ``python -m tools.mutants --count 40 --seed 1``.

A mutant is a copy of the repository with one changed comparison, number, operator or statement in a pure package.  The
tests of that package run until one fails.  Mutants that survive are printed with their line.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
#: Pure package -> its tests that start no process.
ROOMS = {
    "eps/core": ("tests/core/test_*.py", "tests/paper/test_eps_paper.py"),
    "hscheduler/core": (
        "tests/paper/test_eps_algorithm1.py",
        *(
            f"tests/hscheduler/test_{name}.py"
            for name in ("growth", "kill", "needs", "places", "random_histories", "taken", "timeline", "watch")
        ),
    ),
}
#: Operator -> its replacement, in both directions.
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.Eq: ast.NotEq, ast.Is: ast.IsNot, ast.In: ast.NotIn,
    ast.Add: ast.Sub, ast.And: ast.Or,
}  # fmt: skip
SWAPS |= {other: one for one, other in SWAPS.items()}
#: A mutant that is slower than the original by this factor counts as hung.
PATIENCE = 5


class Change(NamedTuple):
    line: int
    what: str
    apply: Callable[[], None]


def changes(tree: ast.AST) -> Iterator[Change]:
    """Yield the possible changes of a syntax tree, in its order; each is applied in place."""
    hints = {id(part) for node in ast.walk(tree) for hint in _hints(node) for part in ast.walk(hint)}
    for node in ast.walk(tree):
        if id(node) in hints:
            continue
        for field, op in _operators(node):
            if type(op) in SWAPS:
                other = SWAPS[type(op)]

                def swap(field: list[Any] | Any = field, other: type = other, at: ast.AST = op) -> None:
                    if isinstance(field, list):
                        field[field.index(at)] = other()
                    else:
                        field.op = other()

                yield Change(node.lineno, f"{type(op).__name__} is {other.__name__}", swap)  # type: ignore[attr-defined]
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            value = not node.value if isinstance(node.value, bool) else node.value + 1
            yield Change(node.lineno, f"{node.value} is {value}", lambda n=node, v=value: setattr(n, "value", v))  # type: ignore[misc]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            doubled = ast.UnaryOp(ast.Not(), node.operand)
            yield Change(node.lineno, "not is left out", lambda n=node, d=doubled: setattr(n, "operand", d))  # type: ignore[misc]
        for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            for place, statement in enumerate(block if isinstance(block, list) else ()):
                if _acts(statement):
                    told = f"left out: {ast.unparse(statement)}"
                    yield Change(statement.lineno, told, lambda b=block, p=place: b.__setitem__(p, ast.Pass()))  # type: ignore[misc]


def _operators(node: ast.AST) -> list[tuple[Any, ast.AST]]:
    if isinstance(node, ast.Compare):
        return [(node.ops, op) for op in node.ops]
    return [(node, node.op)] if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) else []


def _hints(node: ast.AST) -> list[ast.AST]:
    """Return type hints and decorators, which are not changed."""
    hints = [hint for name in ("annotation", "returns") if (hint := getattr(node, name, None)) is not None]
    return [*hints, *getattr(node, "decorator_list", ())]


def _acts(node: ast.AST) -> bool:
    """Return whether a statement has an effect whose removal causes no NameError."""
    if isinstance(node, ast.Assign):
        return not any(isinstance(target, ast.Name | ast.Tuple) for target in node.targets)
    return isinstance(node, ast.AugAssign | ast.Delete) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    )


def run(folder: Path, room: str, timeout_s: float | None = None) -> bool:
    """Return whether the tests of a package pass in a copy of the repository."""
    files = [str(path) for pattern in ROOMS[room] for path in sorted(folder.glob(pattern))]
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *files]
    # Bytecode of one mutant must not be used for the next.
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in (0, 1, 2):
        raise SystemExit(f"the tests cannot be run: {done.stdout}{done.stderr}")
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40, help="number of mutants; default: 40")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample; default: 1")
    args = parser.parse_args()
    paths = [path for room in ROOMS for path in sorted((ROOT / room).glob("*.py"))]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    all_of_them = [(path, n) for path, tree in zip(paths, trees, strict=True) for n, _ in enumerate(changes(tree))]
    sample = random.Random(args.seed).sample(all_of_them, min(args.count, len(all_of_them)))
    killed = 0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made, "repository")
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache"))
        limits = {}
        for room in ROOMS:
            began_s = time.monotonic()
            if not run(folder, room):
                raise SystemExit(f"the tests of {room} fail without any change")
            limits[room] = 30 + PATIENCE * (time.monotonic() - began_s)
        for path, number in sorted(sample):
            room, copy = str(path.parent.relative_to(ROOT)), folder / path.relative_to(ROOT)
            tree = ast.parse(path.read_text(encoding="utf-8"))
            change = list(changes(tree))[number]
            change.apply()
            copy.write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")
            survives = run(folder, room, limits[room])
            shutil.copy(path, copy)
            killed += not survives
            verdict = "survives" if survives else "killed  "
            print(f"{verdict} {path.relative_to(ROOT)}:{change.line}: {change.what}", flush=True)
    print(f"killed {killed} of {len(sample)} sampled from {len(all_of_them)} mutants (seed {args.seed})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
