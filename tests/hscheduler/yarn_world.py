"""Snapshots of a small YARN, and the texts of its plugin, for tests."""

from __future__ import annotations

from urllib.parse import quote_plus, unquote_plus

from hscheduler.core.resources import Resources, Role
from hscheduler.yarn.plan import Facts
from hscheduler.yarn.wire import Application, Ask, Held, Node, Plan, Queue, Snapshot, User

SIZE = Resources(1, 1024)
MASTER = Resources(1, 512)


def container(number: int, k: int) -> str:
    """Return the name of a container of an application."""
    return f"container_1700000000000_{number:04d}_01_{k:06d}"


def running(
    number: int, places: dict[str, int], *, marked: tuple[int, ...] = (), queue: str = "eps", user: str = "ada"
) -> Application:
    """Return a job with its master on n1 and this many members on each node; the first one is the oldest."""
    held = [Held(container(number, 1), "n1:1", MASTER, True, 100_000)]
    k = 2
    for node, count in places.items():
        for _ in range(count):
            held.append(Held(container(number, k), node, SIZE, False, 90_000 - k, k in marked))
            k += 1
    name = f"application_1700000000000_{number:04d}"
    return Application(name, f"job-{number}", "RUNNING", queue, user, 0, number, containers=tuple(held))


def waiting(number: int, **changes: object) -> Application:
    """Return a job that lacks its master."""
    values: dict[str, object] = {"queue": "eps", "user": "ada", "priority": 0, "submitted_ms": number}
    values["asks"] = (Ask(True, 1, SIZE),)
    values |= changes
    name = f"application_1700000000000_{number:04d}"
    return Application(name, f"job-{number}", "ACCEPTED", **values)  # type: ignore[arg-type]


def facts(job: Application, servers: int = 1, *, feedback: bool = True, may_shrink: bool = True) -> Facts:
    """Return facts: the oldest members are servers, the others workers."""
    members = [held.container_id for held in job.containers if not held.is_master]
    roles = {name: Role.SERVER if k < servers else Role.WORKER for k, name in enumerate(members)}
    return Facts(feedback, roles, may_shrink)


def snapshot(
    *applications: Application,
    free: dict[str, Resources] | None = None,
    labels: dict[str, str] | None = None,
    queues: tuple[Queue, ...] = (),
    users: tuple[User, ...] = (),
    counts_cores: bool = True,
) -> Snapshot:
    """Return a YARN with the nodes n1 and n2, without free space."""
    nodes = {"n1:1": Resources(0, 0), "n2:1": Resources(0, 0)} | (free or {})
    labels = labels or {}
    found = tuple(Node(node, labels.get(node, ""), size) for node, size in nodes.items())
    return Snapshot("life", 5000, counts_cores, found, applications, queues, users)


# ---- the plugin's format


def snapshot_text(found: Snapshot) -> bytes:
    """Return a snapshot as the plugin writes it."""
    lines: list[list[object]] = [
        ["hscheduler-yarn", 3, found.instance, found.taken_ms, found.counts_cores],
        *(["node", n.node, n.partition, *_pair(n.free)] for n in found.nodes),
    ]
    for a in found.applications:
        told = [a.application_id, a.name, a.state, a.queue, a.user, a.priority, a.submitted_ms, ",".join(a.tags)]
        lines.append(["app", *told, a.host, a.port, a.diagnostics])
        for ask in a.asks:
            role = "master" if ask.for_master else "member"
            lines.append(["ask", a.application_id, role, ask.number, *_pair(ask.size), ask.label])
        for c in a.containers:
            told = [a.application_id, c.container_id, c.node, *_pair(c.size), c.is_master, c.age_ms, c.marked]
            lines.append(["container", *told])
    for q in found.queues:
        lines.append(["queue", q.queue, q.partition, *_pair(q.used), *_pair(q.most), q.preemption_disabled])
    for u in found.users:
        lines.append(["user", u.queue, u.user, u.partition, *_pair(u.used), *_pair(u.limit)])
    written = ["\t".join(quote_plus(_word(field)) for field in line) for line in [*lines, ["end"]]]
    return "".join(f"{line}\n" for line in written).encode()


def parse_plan(text: bytes) -> Plan:
    """Return the plan in a text."""
    first, *lines, last, rest = text.decode().split("\n")
    assert (first, last, rest) == ("hscheduler-plan\t3", "end", "")
    found: dict[str, list[str]] = {"at": [], "take": [], "spare": [], "say": []}
    for line in lines:
        word, value = line.split("\t")
        found[word].append(unquote_plus(value))
    instance, taken_ms = found["at"]
    return Plan(instance, int(taken_ms), tuple(found["take"]), tuple(found["spare"]), tuple(found["say"]))


def _pair(size: Resources) -> tuple[int, int]:
    return size.memory_mb, size.vcores


def _word(field: object) -> str:
    return str(field).lower() if isinstance(field, bool) else str(field)
