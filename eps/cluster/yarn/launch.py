"""Build the launches of containers from a template for each kind of container.  Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from eps.cluster.api import ContainerRequest
from eps.cluster.yarn.allocation import Placement
from eps.cluster.yarn.types import Grant, Launch, LocalFile

#: Redirect a container's output to the two files that ``yarn logs`` shows.
LOG_STREAMS = "1><LOG_DIR>/stdout 2><LOG_DIR>/stderr"


def escaped(text: str) -> str:
    """Escape a text for a shell's double quotes, between which a NodeManager puts it."""
    return re.sub(r'([\\"$`])', r"\\\1", text)


@dataclass(frozen=True, slots=True)
class RoleTemplate:
    """How the containers of one kind are started, and where."""

    #: For a shell in the container's folder, which runs it with ``exec`` so that signals reach the process.
    command: str
    env: Mapping[str, str] = field(default_factory=dict)
    #: Name in the container's folder -> file.
    files: Mapping[str, LocalFile] = field(default_factory=dict)
    placement: Placement = field(default_factory=Placement)
    #: See :class:`~eps.cluster.yarn.types.Launch`; a node takes an application's from its first container there.
    access: Mapping[str, str] = field(default_factory=dict)


class _Placements(Mapping[str, Placement]):
    """Live view of the placements of all kinds."""

    def __init__(self, roles: Mapping[str, RoleTemplate]) -> None:
        self._roles = roles

    def __getitem__(self, role: str) -> Placement:
        return self._roles[role].placement

    def __iter__(self) -> Iterator[str]:
        return iter(self._roles)

    def __len__(self) -> int:
        return len(self._roles)


@dataclass(frozen=True, slots=True)
class LaunchTemplate:
    """How the containers of one or several jobs are started; kinds may be added and removed meanwhile."""

    #: Kind of container: role, or tier in a job with tiers -> its template.
    roles: Mapping[str, RoleTemplate]
    #: Tokens for the containers, in Hadoop's format, without the application master's own; empty: none.
    credentials: bytes = field(default=b"", repr=False)

    @property
    def placements(self) -> Mapping[str, Placement]:
        """Kind of container -> where these containers go."""
        return _Placements(self.roles)


def build_launch(template: LaunchTemplate, request: ContainerRequest, grant: Grant) -> Launch:
    """Return the launch of a granted container.

    The environment names role, container id and host; the request's variables override the template's.
    """
    role = template.roles[request.kind]
    env = {
        **role.env,
        "EPS_ROLE": request.role,
        "EPS_CONTAINER_ID": request.container_id,
        "EPS_HOST": grant.host,
        **request.env,
    }
    return Launch(f"exec {role.command} {LOG_STREAMS}", env, role.files, template.credentials, role.access)
