"""Generate docs/reference.md from the parsers and settings: commands, options, settings, variables, exit codes.

``python -m tools.reference`` writes it.  With ``--check`` the exit code is 1 if it is not up to date.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import eps.cli.parser
import hscheduler.cli
from eps.cli.exits import EXIT_CODES
from eps.spec.job_spec import TABLES
from hscheduler.spec import ClusterSpec, SweepSpec

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference.md"

_HEAD = """\
# Reference

`python -m tools.reference` writes this page from the parsers and settings of the code.

- [Commands of `eps`](#commands-of-eps)
- [Commands of `hscheduler`](#commands-of-hscheduler)
- [A job's file](#a-jobs-file)
- [A sweep's file](#a-sweeps-file)
- [Python](#python)
- [Environment variables](#environment-variables)
- [Exit codes](#exit-codes)
"""

_JOB_FILE = """\
## A job's file

`eps run JOB.toml` reads TOML. Its keys are the flags of `eps run` without the leading dashes (`learning-rate` or
`learning_rate`), and the arguments of `eps.run` and `eps.Job.start`. A flag overrides the file. Relative paths start at
the file's folder.

A key may also stand in the table of its group, which is the heading of its flag above: `[TABLES]`.
"""

_SPACE = """\
`[space]` has a table for each setting of `eps run` that the sweep searches:

| table | values |
|---|---|
| `{ uniform = [a, b] }` | between a and b |
| `{ loguniform = [a, b] }` | between a and b, evenly on a logarithmic scale |
| `{ quniform = [a, b, step] }` | multiples of `step` between a and b |
| `{ randint = [a, b] }` | whole numbers from a to b - 1 |
| `{ choice = [x, y, ...] }` | one of the list |
| `{ choice = [{ ... }, { ... }] }` | the settings of one of the tables, fixed or searched; may be nested |

`[job]` has the settings that all trials share, as in [a job's file](#a-jobs-file).
"""

#: Module -> its public names for scripts (tests/surface checks them); names that do not exist are left out.
NAMES = {
    "eps": (
        "run load Job.start Job.find Job.resume Job.status Job.history Job.wait Job.report Job.export Job.scale "
        "Job.add_workers Job.add_servers Job.remove_workers Job.remove_servers Job.dry_run Job.cancel Job.kill "
        "Job.close"
    ),
    "hscheduler": "sweep report SweepReport.write_page HTrials",
    "hscheduler.service.client": (
        "SchedulerClient SchedulerClient.submit_job SchedulerClient.wait SchedulerClient.job SchedulerClient.jobs "
        "SchedulerClient.cancel SchedulerClient.save_model SchedulerClient.run_sweep SchedulerClient.report "
        "SchedulerClient.watch SchedulerClient.close"
    ),
}

#: Environment variables for users, without those that a supervisor sets for its processes.
VARIABLES = {
    "EPS_HOME": "folder of jobs, data caches and services; only its user may write to it (default `~/.eps`)",
    "EPS_KERNELS": "`auto` (compiled kernels for large models; the default), `numba` (always) or `numpy` (never)",
    "EPS_LOG": "level of the log, as in `debug` (default `info`)",
    "EPS_HDFS_PATIENCE_S": "seconds for which EPS retries while HDFS is unreachable (default 60)",
    "EPS_HDFS_TOKEN": "delegation token for WebHDFS, as text",
    "EPS_HADOOP_CLASSPATH": "class path of Hadoop's client (default: what `hadoop classpath --glob` prints)",
    "HADOOP_CONF_DIR": "configuration of the Hadoop cluster (YARN, HDFS)",
    "KRB5_CLIENT_KTNAME": "keytab whose first principal EPS logs in as, where the cluster uses Kerberos",
    "DOCKER_HOST": "address of the Docker engine",
}


def page() -> str:
    """Return the text of the page."""
    parts = [_HEAD, "## Commands of `eps`\n", *commands(eps.cli.parser.build_parser())]
    parts += ["## Commands of `hscheduler`\n", *commands(hscheduler.cli.build_parser())]
    parts += [_JOB_FILE.replace("TABLES", "]`, `[".join(TABLES)), "## A sweep's file\n"]
    for section, settings in (("cluster", ClusterSpec), ("sweep", SweepSpec)):
        parts.append(f"`[{section}]`:\n\n" + table(("key", "default", "meaning"), keys(settings)))
    parts.append(_SPACE)
    parts += ["## Python\n", table(("name", "meaning"), names())]
    parts += [
        "## Environment variables\n",
        table(("variable", "meaning"), ((f"`{name}`", text) for name, text in VARIABLES.items())),
    ]
    parts += ["## Exit codes\n", table(("code", "meaning"), exit_codes())]
    return "\n".join(parts)


def commands(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield a section for each command of a program; the options of its first command are not repeated."""
    known: set[tuple[str, str]] = set()
    for inner in leaves(parser):
        rows = {row(each) for each in inner._actions if each.option_strings}
        shared = known & rows
        # A few common options, such as --json, are repeated; only many are replaced by a link.
        yield section(inner, shared if len(shared) > 20 else set(), next(leaves(parser)).prog)
        known = known or rows


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers of all commands that have no subcommands."""
    inner = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not inner:
        yield parser
    for action in inner:
        for choice in action.choices.values():
            yield from leaves(choice)


def section(parser: argparse.ArgumentParser, shared: set[tuple[str, str]], first: str) -> str:
    """Return the section of one command without the options that it shares with the first one."""
    words = [positional(each) for each in parser._actions if not each.option_strings]
    options = any(each.option_strings for each in parser._actions if each.dest != "help")
    usage = " ".join([parser.prog, *(["[OPTIONS]"] if options else []), *words])
    paragraphs = re.split(r"\n\n|\n(?=  - )", parser.description or "")
    parts = [f"### {parser.prog}\n", f"    {usage}\n", *(f"{cell(each, '')}\n" for each in paragraphs)]
    if shared:
        parts.append(f"It takes the options of [{first}](#{first.replace(' ', '-')}) as well.\n")
    for group in parser._action_groups:
        rows = [row(each) for each in group._group_actions if each.dest != "help"]
        rows = [each for each in rows if each not in shared and each[1]]
        if rows:
            named = group not in (parser._positionals, parser._optionals)
            parts.append(f"{group.title}:\n" if named else "")
            parts.append(table(("argument" if group is parser._positionals else "option", "meaning"), rows))
    return "\n".join(part for part in parts if part)


def positional(action: argparse.Action) -> str:
    """Return a positional argument as in the usage line."""
    name = str(action.metavar or action.dest)
    if action.nargs == "?":
        return f"[{name}]"
    return f"{name}..." if action.nargs in ("+", "*") else name


def row(action: argparse.Action) -> tuple[str, str]:
    """Return an argument and its help."""
    text = cell(str(action.help or "").replace("%%", "%"))
    if not action.option_strings:
        return f"`{cell(str(action.metavar or action.dest))}`", text
    # A time has two spellings; the short one is documented.
    name = action.option_strings[0]
    takes = action.nargs != 0 and not isinstance(action, argparse.BooleanOptionalAction)
    if isinstance(action, argparse.BooleanOptionalAction):
        name = f"`{action.option_strings[0]}`, `{action.option_strings[1]}`"
        return name, text
    return f"`{name} {cell(str(action.metavar or action.dest.upper()))}`" if takes else f"`{name}`", text


def keys(settings: type[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield name, default and comment of each field of a dataclass."""
    lines = inspect.getsource(settings).splitlines()
    comments: dict[str, str] = {}
    noted: list[str] = []
    for line in lines:
        text = line.strip()
        if text.startswith("#:"):
            noted.append(text.removeprefix("#:").strip())
        else:
            name, colon, _ = text.partition(":")
            if colon and name.isidentifier():
                comments[name] = " ".join(noted)
            noted = []
    for field in dataclasses.fields(settings):
        default = ast.literal_eval(repr(field.default))
        shown = f'"{default}"' if isinstance(default, str) else str(default)
        yield f"`{field.name}`", f"`{shown}`", cell(comments.get(field.name, ""))


def names() -> Iterator[tuple[str, str]]:
    """Yield the signature of each public name and the first paragraph of its docstring."""
    for module, public in NAMES.items():
        for name in public.split():
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part, None)
            if found is not None:
                yield f"`{module}.{name}{inspect.Signature(parameters(found))}`", first_line(found)


def parameters(found: Any) -> list[inspect.Parameter]:
    """Return the parameters of a function without types, without ``self``, private ones and default callbacks."""
    return [
        each.replace(annotation=inspect.Parameter.empty)
        for each in inspect.signature(found).parameters.values()
        if each.name != "self" and not each.name.startswith("_") and not inspect.isfunction(each.default)
    ]


def first_line(found: Any) -> str:
    """Return the first paragraph of a docstring without roles such as ``:meth:``."""
    return cell(re.sub(r":\w+:`[~.]*([^`]*)`", r"`\1`", (inspect.getdoc(found) or "").split("\n\n")[0]))


def exit_codes() -> Iterator[tuple[str, str]]:
    """Yield the exit codes and their meaning."""
    for line in EXIT_CODES.splitlines()[1:]:
        code, _, text = line.strip().partition(" ")
        yield code, text.strip()


def cell(text: str, bar: str = "\\|") -> str:
    """Return ``text`` as one line, for a cell of a table."""
    return " ".join(text.split()).replace("|", bar or "|").replace("``", "`")


def table(heads: tuple[str, ...], rows: Any) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    lines += [f"| {' | '.join(each)} |" for each in rows]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page, or check whether it is up to date."""
    parser = argparse.ArgumentParser(prog="python -m tools.reference", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page would change")
    if parser.parse_args().check:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
