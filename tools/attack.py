"""Security test: a process of another user attacks running jobs and their scheduler.

::

    python tools/attack.py --seconds 120 [--seed N] [--tls] [--only KINDS] [--json] [--log FILE]

Jobs run one after the other beside a service of H-scheduler.  The attacker (``stranger.py``) binds the ports of killed
masters, sends false answers, replays recorded calls, forges proofs, floods ports and plants files.  Honest
clients use the job and the service meanwhile.  The verdict is computed from the jobs' ledgers, the hashes of their
models, the answers to honest clients, and the jobs' files.

It needs root, to become another user, and its own network namespace, so that nothing outside is attacked.

Exit codes: 0 if no attack succeeded; 1 if a lie was believed, an update was lost or something stopped; 2 if the test
cannot run here.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import os
import random
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

# Before gRPC is imported, which otherwise logs each failed handshake.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import eps  # noqa: E402
from eps.errors import EpsError  # noqa: E402
from eps.net.security.certificates import make_certificates  # noqa: E402
from eps.system import interrupt  # noqa: E402
from eps.system.waits import wait_for  # noqa: E402
from tools.chaos.processes import marked, with_mark  # noqa: E402
from tools.victims import END_S, FLOOD_S, STRETCH_S, VICTIM, Facts, Round, Service, judge_report, scan  # noqa: E402

#: User id of the attacker: that of "nobody", who owns no files.
STRANGER = 65_534
JOB = {"data": "sklearn:breast_cancer", "model": "logistic", "splits": 6, "partitions": 6}
#: A job trains about ten iterations a second.
PER_SECOND, FEWEST_ITERATIONS, MOST_ITERATIONS = 8, 120, 1200
#: The usual limit of descriptors; a flood exceeds it.
DESCRIPTORS = 1024
_CLONE_NEWNET = 0x4000_0000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


class StrangerProcess:
    """The attacking process, seen from the driver.

    Parameters
    ----------
    told : dict
        See :class:`tools.stranger.Stranger`.
    log : Path
        File for all attempts.
    """

    def __init__(self, told: dict[str, Any], log: Path) -> None:
        self.counts: dict[str, Counter[str]] = {}
        #: Attempts whose outcome makes the test fail.
        self.noted: dict[str, list[str]] = {"accepted": [], "broken": []}
        self._log = log
        #: The standard error stream, to which gRPC logs.
        self._complaints = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tools" / "stranger.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            stderr=self._complaints,
            env={"PATH": os.environ.get("PATH", ""), "PYTHONDONTWRITEBYTECODE": "1"},
            # Only the driver handles Ctrl-C.
            start_new_session=True,
        )
        self._say(told)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _say(self, order: dict[str, Any]) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        pipe.write(json.dumps(order) + "\n")
        pipe.flush()

    def tell(self, **order: Any) -> None:
        """Send an order, if the process runs."""
        with suppress(OSError, ValueError):
            self._say(order)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._log.open("w", encoding="utf-8") as log:
            for line in self._process.stdout:
                log.write(line)
                attempt = json.loads(line)
                self.counts.setdefault(attempt["kind"], Counter())[attempt["outcome"]] += 1
                if attempt["outcome"] in self.noted:
                    what = f"{attempt['kind']}: {attempt['target']}: {attempt['detail']}"
                    self.noted[attempt["outcome"]].append(what)

    def failure(self) -> str:
        """Return why the process has exited; empty while it runs."""
        if self._process.poll() is None:
            return ""
        self._complaints.seek(0)
        return f"it ended with {self._process.returncode}: {self._complaints.read()[-500:]}"

    def end(self) -> None:
        """End the process."""
        self.tell(over=True)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        self._process.kill()
        self._process.wait(END_S)
        self._reader.join(END_S)
        self._complaints.close()


def isolate() -> None:
    """Enter a new network namespace with a loopback interface.

    Raises
    ------
    OSError
        This process lacks the right.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        name = b"lo".ljust(16, b"\0")
        flags = struct.unpack("16sh", fcntl.ioctl(sock, _SIOCGIFFLAGS, name + bytes(2) + bytes(22))[:18])[1]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, name + struct.pack("h", flags | _IFF_UP) + bytes(22))


def attack(
    seconds: float, seed: int, tls: bool, only: list[str], log: Path | None, say: Callable[[str], None]
) -> dict[str, Any]:
    """Run the test and return its result."""
    chance, facts = random.Random(seed), Facts()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(DESCRIPTORS, most), most))
    with ExitStack() as stack:
        mark = stack.enter_context(marked())
        work = Path(tempfile.mkdtemp(prefix="eps-attack-"))
        stack.callback(shutil.rmtree, work, ignore_errors=True)
        stack.callback(end_all, mark)
        scratch, home, temporary = work / "scratch", work / "home", work / "tmp"
        for folder, mode in ((work, 0o755), (temporary, 0o1777), (scratch, 0o755)):
            folder.mkdir(exist_ok=True)
            folder.chmod(mode)
        os.environ.update(EPS_HOME=str(home), TMPDIR=str(temporary))
        # tempfile caches the folder.
        tempfile.tempdir = None
        certificates = ""
        with suppress(EpsError):
            certificates = str(make_certificates(scratch / "tls").ca.parent)
        shutil.chown(scratch, STRANGER, STRANGER)
        for path in scratch.rglob("*"):
            shutil.chown(path, STRANGER, STRANGER)

        iterations = min(MOST_ITERATIONS, max(FEWEST_ITERATIONS, int(PER_SECOND * seconds)))
        settings: dict[str, Any] = {**JOB, "iterations": iterations, "tls": tls}
        say(f"undisturbed: a job of {iterations} iterations")
        oracle = eps.run(name="oracle", workers=1, servers=1, **settings)["model_sha256"]

        # With TLS the service also listens on TCP.
        listen = ("--listen", "127.0.0.1:0") if tls else ()
        service = Service(home / "hscheduler", facts, random.Random(f"{seed}-service"), *listen)
        stack.callback(service.end)
        service.start()
        folders = [home, home / "jobs", home / "jobs" / VICTIM, home / "hscheduler", home / "jobs" / VICTIM / "logs"]
        told = {
            "uid": STRANGER, "owner": os.geteuid(), "folders": list(map(str, folders)), "temporary": str(temporary),
            "scratch": str(scratch), "certificates": certificates, "seed": seed,
            "only": only, "flood_s": min(FLOOD_S, max(4.0, seconds / 3)),
        }  # fmt: skip
        stranger = StrangerProcess(told, log or work / "attempts.jsonl")
        stack.callback(stranger.end)

        until_s = time.monotonic() + seconds
        number = 0
        while number == 0 or time.monotonic() < until_s:
            van = chance.choice(["auto", "tcp"])
            number += 1
            interrupt.check()
            say(f"job {number}, by {van}: {max(0.0, until_s - time.monotonic()):.0f} s left; {facts.verdict()}")
            more = {"stretch_s": STRETCH_S, "metrics_port": 0, "van": van}
            report = Round({**settings, **more}, facts, stranger.tell, chance).play(mark)
            judge_report(facts, report, oracle)
            scan(facts, home, f"jobs/{VICTIM}")
            if why := stranger.failure():
                facts.stop(f"the attack itself: {why}")
                break
        service.finish()
        stranger.end()
        scan(facts, home)
        facts.believed, facts.stopped = list(dict.fromkeys(facts.believed)), list(dict.fromkeys(facts.stopped))
        facts.believed += [f"accepted: {text}" for text in stranger.noted["accepted"]]
        for text in stranger.noted["broken"]:
            facts.stop(f"the attack itself: {text}")
        if not any(counts.total() for counts in stranger.counts.values()):
            facts.stop("the attack itself: nothing was tried")
        wait_until_gone(facts, mark)
    return {
        "seconds": seconds,
        "seed": seed,
        "tls": tls,
        "attempts": {kind: dict(counts) for kind, counts in sorted(stranger.counts.items())},
        "done": dict(facts.done),
        "believed": facts.believed,
        "stopped": facts.stopped,
        "lost": facts.lost,
        "applied_twice": facts.applied_twice,
        "other_models": facts.other_models,
        "verdict": facts.verdict(),
        "holds": facts.holds,
    }


def wait_until_gone(facts: Facts, mark: str) -> None:
    """Wait for all processes of the victims; note those that do not exit."""
    try:
        wait_for(lambda: not with_mark(mark), END_S, "the end of all processes")
    except EpsError:
        facts.stop(f"{len(with_mark(mark))} processes have not ended")


def end_all(mark: str) -> None:
    """Kill all processes that carry ``mark``."""
    deadline_s = time.monotonic() + END_S
    while (pids := with_mark(mark)) and time.monotonic() < deadline_s:
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


OUTCOMES = ("refused", "unreachable", "answered", "held", "accepted", "broken")


def table(found: dict[str, Any]) -> str:
    """Return the result as a table."""
    lines = [f"{'attempt':26}{'tried':>8}" + "".join(f"{name:>13}" for name in OUTCOMES)]
    total: Counter[str] = Counter()
    for kind, counts in [*found["attempts"].items(), ("all", total)]:
        cells = "".join(f"{counts.get(name, 0):>13}" for name in OUTCOMES)
        lines.append(f"{kind:26}{sum(counts.values()):>8}{cells}")
        total.update(counts)
    lines += ["", "meanwhile: " + ", ".join(f"{name} {count}" for name, count in sorted(found["done"].items()))]
    for name in ("believed", "stopped"):
        told = found[name][:12]
        lines += [f"{name}: {text}" for text in told]
        if len(found[name]) > len(told):
            lines.append(f"{name}: and {len(found[name]) - len(told)} more")
    return "\n".join([*lines, found["verdict"]])


def main() -> int:
    """Run the test and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=120.0, metavar="S", help="duration; default: 120")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the order of attempts; default: 0")
    parser.add_argument("--tls", action="store_true", help="encrypt the job's connections, so that it listens on TCP")
    parser.add_argument(
        "--only", default="", metavar="KINDS", help="kinds of attempts, joined by commas and named as in the result"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--log", type=Path, metavar="FILE", help="write each attempt and its outcome, one JSON a line")
    args = parser.parse_args()
    if os.geteuid() != 0:
        print("attack.py must be run by root: it starts a process of another user", file=sys.stderr)
        return 2
    try:
        isolate()
    except OSError as error:
        print(f"attack.py needs a network namespace of its own (CAP_SYS_ADMIN): {error.strerror}", file=sys.stderr)
        return 2

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    only = [kind.strip() for kind in args.only.split(",") if kind.strip()]
    try:
        with interrupt.noted(), interrupt.interrupt_on_signals():
            found = attack(args.seconds, args.seed, args.tls, only, args.log, say)
            interrupt.check()
    except KeyboardInterrupt:
        return 130
    print(json.dumps(found, indent=2) if args.json else table(found))
    return 0 if found["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
