"""Requests to run a job: from job files, flags and arguments of Python.

A key of a job file is the name of a flag, with ``_`` or ``-``, at the top of the file or in the table of its group.  A
key of seconds may lack its ``_s``.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eps.errors import ConfigError
from eps.spec.job_spec import SETTINGS, TABLES, JobSpec, known_key
from eps.spec.setting import errors_of, plain
from eps.storage.locations import has_scheme
from eps.system.nearest import did_you_mean

#: Keys of a job file and of :func:`eps.run` that are not settings of the job itself.
RUN_KEYS = ("name", "report", "export", "anew")
#: Settings of jobs on YARN only.
OF_YARN = frozenset({"container_timeout_s", *(name for name, setting in SETTINGS.items() if setting.table == "yarn")})
#: Settings of jobs that take checkpoints only.
OF_CHECKPOINTS = frozenset(name for name, setting in SETTINGS.items() if setting.table == "checkpoints")
#: Settings that are one path.
_PATHS = {"report", "export", *(name for name, each in SETTINGS.items() if each.metavar == "PATH")} - {"data"}


@dataclass(frozen=True)
class RunRequest:
    """A job to run, and the destinations of its results."""

    spec: JobSpec
    #: Name of the job; empty: EPS chooses one.
    name: str = ""
    #: Destination of the report; empty: the job's directory only.
    report: str = ""
    #: Destination of the trained model; empty: the job's directory only.
    export: str = ""
    #: Replace a stopped job of that name, and its checkpoints.
    anew: bool = False
    #: No command waits for its end: the job itself copies report and model to their destinations.
    detached: bool = False
    #: Settings that were given, not taken from defaults.
    given: frozenset[str] = frozenset()
    #: The scheduler that grants its containers and alone may change its size; empty for none.
    manager: str = ""

    @classmethod
    def from_values(cls, values: Mapping[str, Any], source: str = "") -> RunRequest:
        """Return the request of these values; names may have dashes for underscores.

        Raises
        ------
        ConfigError
            A name is unknown or given twice, or a value is invalid; the message begins with ``source``.
        """
        with errors_of(source):
            by_name = named(values)
            own = {name: by_name.pop(name) for name in RUN_KEYS if name in by_name}
            anew = own.pop("anew", False)
            if not isinstance(anew, bool):
                raise ConfigError(f"anew is {anew!r}, but must be true or false")
            for name, value in own.items():
                if not isinstance(value, str | Path):
                    raise ConfigError(f"{name} is {value!r}, but must be text")
            spec = JobSpec.from_dict({**by_name, **_of_tiers(by_name)})
            # Only checked here: a job that an earlier version started with such tags can resume.
            tags = spec.yarn.tags
            if tags and not all(tag.strip() for tag in tags.split(",")):
                raise ConfigError(f"tags is {tags!r}, but must be tags joined by commas, none of them empty")
        texts: dict[str, Any] = {name: str(value) for name, value in own.items()}
        return cls(spec, given=frozenset(by_name), anew=anew, **texts)

    @classmethod
    def of_spec(cls, spec: JobSpec, name: str = "", *, anew: bool = False, manager: str = "") -> RunRequest:
        """Return the request for a job with these settings; those that differ from their defaults count as given."""
        changed = (name for name, value in spec.values().items() if value != SETTINGS[name].default)
        return cls(spec, name, anew=anew, given=frozenset(changed), manager=manager)

    def with_spec(self, **changes: Any) -> RunRequest:
        """Return the request with some settings changed, by name."""
        return dataclasses.replace(self, spec=self.spec.with_settings(**changes))


def _of_tiers(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that follow for a job on reliable and transient containers: splits for four times as many.

    Raises
    ------
    ConfigError
        The numbers of workers or servers are given, too.
    """
    numbers = [given.get("reliable", 0), given.get("transient", 0)]
    if not all(isinstance(number, int) for number in numbers) or not sum(numbers):
        return {}
    for name in ("workers", "servers"):
        if name in given:
            raise ConfigError(
                f"{name} is {given[name]}, but a job with reliable and transient containers decides which of them work "
                f"and serve: leave {name} out"
            )
    return {} if "splits" in given else {"splits": max(SETTINGS["splits"].default, 4 * sum(numbers))}


def named(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by the names of their settings.

    Raises
    ------
    ConfigError
        A key or table is unknown, or a key is given twice or in the wrong table.
    """
    by_name: dict[str, Any] = {}
    for table, key, value in _flat(values):
        with errors_of(f"[{table}]" if table else ""):
            name = known_key(key, (*SETTINGS, *RUN_KEYS))
            group = SETTINGS[name].group if name in SETTINGS else ""
            if table and group != table:
                rightly = f"[{group}]" if group in TABLES else "the top of the file"
                raise ConfigError(f"{name} is not of this table, but of {rightly}")
        if name in by_name:
            raise ConfigError(f"{name} is given twice, in two spellings or places")
        by_name[name] = plain(value)
    return by_name


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield (table, key, value); the table is empty for keys at the top."""
    for key, value in values.items():
        if isinstance(value, Mapping) and key in TABLES:
            yield from ((key, inner, each) for inner, each in value.items())
        elif isinstance(value, Mapping) and key not in SETTINGS:
            raise ConfigError(f"unknown table [{key}]{did_you_mean(key, TABLES)}")
        else:
            yield "", key, value


def read_job_file(path: Path) -> dict[str, Any]:
    """Return the settings in a job file, by name; relative paths start at the file's folder.

    Raises
    ------
    ConfigError
        The file is missing, is not TOML, or has unknown keys.
    """
    folder, values = path.absolute().parent, _read_toml(path)
    with errors_of(str(path)):
        return {name: located(name, value, folder) for name, value in named(values).items()}


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def located(name: str, value: Any, folder: Path) -> Any:
    """Return a setting or table with its relative paths in ``folder``, data as a list; other types are unchanged."""
    if isinstance(value, Mapping) and name in TABLES:
        return {key: located(key.replace("-", "_"), inner, folder) for key, inner in value.items()}
    if name == "data" and isinstance(value, str | list):
        parts = value.split(",") if isinstance(value, str) else value
        return [_beside(part.strip(), folder) if isinstance(part, str) else part for part in parts]
    if not isinstance(value, str):
        return value
    is_path = name in _PATHS or (name == "test" and _is_path(value)) or (name == "model" and ".py:" in value)
    return _beside(value, folder) if is_path else value


def _beside(path: str, folder: Path) -> str:
    if not path or path.startswith("sklearn:") or has_scheme(path):
        return path
    return str(folder / Path(path).expanduser())


def _is_path(test: str) -> bool:
    """Return whether ``test`` names a file, and not a part of the data (``0.2``, ``last:5000``)."""
    if test.startswith("last:"):
        return False
    try:
        float(test)
    except ValueError:
        return True
    return False
