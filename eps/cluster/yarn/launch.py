"""What runs in the containers of each role: the caller's templates, made into launches.  Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from eps.cluster.api import ContainerRequest
from eps.cluster.yarn.allocation import Placement
from eps.cluster.yarn.types import Grant, Launch, LocalFile

#: Where YARN keeps what a container writes; ``yarn logs`` shows these two.
LOG_STREAMS = "1><LOG_DIR>/stdout 2><LOG_DIR>/stderr"


def escaped(text: str) -> str:
    """Return a text that a shell sees as it is, which a NodeManager puts between double quotes unchanged."""
    return re.sub(r'([\\"$`])', r"\\\1", text)


@dataclass(frozen=True, slots=True)
class RoleTemplate:
    """How a container of one role is started, and where."""

    #: Run by a shell in the container's folder; replaced by the process with ``exec``, so that signals reach it.
    command: str
    env: Mapping[str, str] = field(default_factory=dict)
    #: Name in the container's folder -> file.
    files: Mapping[str, LocalFile] = field(default_factory=dict)
    placement: Placement = field(default_factory=Placement)
    #: As of :class:`~eps.cluster.yarn.types.Launch`: a node asks its first container who may see an application.
    access: Mapping[str, str] = field(default_factory=dict)


class _Placements(Mapping[str, Placement]):
    """Role -> where its containers go, as the roles are when it is asked."""

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
    """How the containers of a job are started, or those of several: roles may come and go meanwhile."""

    roles: Mapping[str, RoleTemplate]
    #: Tokens for the containers, in Hadoop's format, without the application master's own; empty: none.
    credentials: bytes = field(default=b"", repr=False)

    @property
    def placements(self) -> Mapping[str, Placement]:
        """Role -> where its containers go."""
        return _Placements(self.roles)


def build_launch(template: LaunchTemplate, request: ContainerRequest, grant: Grant) -> Launch:
    """Return what a granted container is to run.

    The environment says role, container id and host; what the request sets goes before what the template does.
    """
    role = template.roles[request.role]
    env = {
        **role.env,
        "EPS_ROLE": request.role,
        "EPS_CONTAINER_ID": request.container_id,
        "EPS_HOST": grant.host,
        **request.env,
    }
    return Launch(f"exec {role.command} {LOG_STREAMS}", env, role.files, template.credentials, role.access)
