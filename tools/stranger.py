"""The attacking process: it has the knowledge and the rights of any other user of the host.

``attack.py`` starts it as root; it drops all rights before it does anything.  The driver gives it what ``ps`` and the
documentation tell any user: process ids and names of folders.  It prints each attempt with its outcome as a line of
JSON.  Outcomes are:

* ``refused``: a victim or the system refused, or closed the connection;
* ``unreachable``: there was nothing to attack;
* ``answered``: a victim got a false answer, or a public page was read; the driver finds out whether it was believed;
* ``held``: a free name, port or connection was held for a while;
* ``accepted``: a victim did or showed something that it must not;
* ``broken``: the attack itself failed.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import random
import resource
import signal
import socket
import ssl
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc

if (root := str(Path(__file__).resolve().parents[1])) not in sys.path:
    sys.path.insert(0, root)

from eps.net.arrays.api import Message
from eps.net.arrays.frames import Kind, whole
from tools.rogue import CALLS, MARK, MARK_KEY, HeardCall, Rogue, listening_ports, unix_sockets

#: Number of parallel attempts, timeout of an answer, and pause after an attempt.
THREADS, ANSWER_S, PAUSE_S = 4, 1.5, 0.15
#: Connections of a flood, more than the usual limit of descriptors, and of smaller attacks.
FLOOD, CROWD = 1100, 150
FEWEST_FLOOD_S, SLOW_S = 3.0, 1.5
#: Timeout of the check whether a port serves HTTP, and how long a negative result is cached.
PROBE_S, KNOWN_S = 0.3, 5.0
_PR_SET_PDEATHSIG = 1
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#: What a listener of the data plane sends after a valid proof of the job's token.
_GREETING = b"".join(bytes(piece) for piece in whole(Message(), 0, Kind.HELLO))
_SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
_STATUS_REFUSED = {
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
}
_STATUS_UNREACHABLE = {
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


class Stranger:
    """The attacks.

    Parameters
    ----------
    told : dict
        ``owner`` (user id of the victims), ``folders`` (paths of their folders), ``temporary`` (their folder for
        temporary files), ``scratch`` (the stranger's own folder), ``certificates`` (folder of certificates of another
        authority, or empty), ``flood_s`` (duration of the longest flood), ``only`` (kinds of attempts, empty for all),
        ``seed``.
    """

    def __init__(self, told: dict[str, Any]) -> None:
        self._owner = int(told["owner"])
        self._folders = [Path(text) for text in told["folders"]]
        self._temporary, self._scratch = Path(told["temporary"]), Path(told["scratch"])
        self._certificates = Path(told["certificates"]) if told["certificates"] else None
        self._only = set(told["only"])
        self._seed, self._flood_s = int(told["seed"]), float(told["flood_s"])
        self._telling = threading.Lock()
        self._pids: list[int] = []
        self._ports: set[int] = set()
        self._names: set[str] = set()
        #: Bytes of honest clients, recorded by the driver.
        self._recorded: deque[bytes] = deque(maxlen=32)
        #: Port -> whether it serves HTTP, and when that was checked.
        self._pages: dict[int, tuple[bool, float]] = {}
        self._flooding = threading.Lock()
        self._rogue = Rogue(self.tell, lambda: listening_ports(self._owner), self._certificates)
        #: Attack -> its weight in the random choice.
        self._attacks = {
            self.unproven_call: 10, self.forged_proof: 4, self.replayed_call: 8, self.replayed_bytes: 5,
            self.tls_of_another_authority: 3, self.garbage: 4, self.half_open_stream: 3, self.huge_frame: 3,
            self.slow_bytes: 2, self.churn: 1, self.crowd: 1, self.flood: 1, self.handshake: 5, self.unix_socket: 4,
            self.wrong_host: 4, self.big_headers: 3, self.slow_request: 2, self.wrong_method: 2, self.read_page: 3,
            self.plant: 5, self.squat_name: 3, self.squat_port: 3, self.read_secrets: 4, self.signal: 2,
        }  # fmt: skip

    def tell(self, kind: str, target: str, outcome: str, detail: str = "") -> None:
        """Print an attempt for the driver."""
        record = {"kind": kind, "target": target, "outcome": outcome, "detail": detail[:200]}
        with self._telling:
            print(json.dumps({"at_s": round(time.time(), 3), **record}), flush=True)

    def run(self) -> None:
        """Attack until the driver ends the test or exits."""
        for number in range(THREADS):
            threading.Thread(
                target=self._attack_on, args=(random.Random(f"{self._seed}-{number}"),), daemon=True
            ).start()
        for line in sys.stdin:
            order = json.loads(line)
            if "pids" in order:
                self._pids = list(order["pids"])
            if "recorded" in order:
                self._recorded.append(base64.b64decode(order["recorded"]))
            if order.get("over"):
                break

    def _attack_on(self, chance: random.Random) -> None:
        attacks = {kind_of(attack): (attack, weight) for attack, weight in self._attacks.items()}
        kinds = [kind for kind in attacks if not self._only or kind in self._only]
        weights = [attacks[kind][1] for kind in kinds]
        while kinds:
            kind = chance.choices(kinds, weights)[0]
            attack = attacks[kind][0]
            try:
                self._look()
                attack(kind, chance)
            except OSError as error:
                self.tell(kind, "", "unreachable", repr(error))
            except Exception as error:
                self.tell(kind, "", "broken", repr(error))
            time.sleep(chance.uniform(0, PAUSE_S))

    def _look(self) -> None:
        # Closed ports are kept: another process may listen there later.
        self._ports |= listening_ports(self._owner)
        if len(self._ports) > 64:
            self._ports = listening_ports(self._owner)
        self._names |= {name for name in unix_sockets()[0] if not name.startswith("@stranger")}

    def _port(self, kind: str, chance: random.Random) -> int:
        """Return a port to attack; report the attempt and return 0 if the victims have none."""
        ports = sorted((listening_ports(self._owner) or self._ports) - self._rogue.taken)
        if not ports:
            self.tell(kind, "any port", "unreachable", "the victims listen on no port")
            return 0
        return chance.choice(ports)

    # ---- calls

    def _call(self, kind: str, port: int, method: str, request: bytes, metadata: Any = ()) -> None:
        where = f"port {port} {method}"
        channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_retries", 0)])
        self._ask(kind, where, channel, method, request, metadata)

    def _ask(
        self, kind: str, where: str, channel: grpc.Channel, method: str, request: bytes, metadata: Any = ()
    ) -> None:
        call: Any = None
        own = (*metadata, (MARK_KEY, "1"))
        try:
            # The four kinds of gRPC methods look the same on the wire.
            call = channel.stream_stream(method)(iter([request]), timeout=ANSWER_S, metadata=own)
            first = next(call, None)
            if any(key == MARK_KEY for key, _ in call.initial_metadata()):
                self.tell(kind, where, "unreachable", "the rogue itself has that port now")
                return
            # A stream that ends without a message was not answered.
            self.tell(kind, where, "refused" if first is None else "accepted", repr(first))
        except grpc.RpcError as error:
            self.tell(kind, where, _outcome(error), f"{error.code()}: {error.details()}")
        finally:
            if call is not None:
                call.cancel()
            channel.close()

    def unproven_call(self, kind: str, chance: random.Random) -> None:
        """Call a method without a proof."""
        if port := self._port(kind, chance):
            self._call(kind, port, *chance.choice(CALLS))

    def forged_proof(self, kind: str, chance: random.Random) -> None:
        """Call a method with an invented, malformed or overlong proof."""
        if not (port := self._port(kind, chance)):
            return
        shaped = f"{int(time.time() * 1000)}.{chance.randbytes(16).hex()}.{chance.randbytes(32).hex()}"
        proofs = [f"{shaped}.{chance.randbytes(32).hex()}", "", "9" * 4000, f"{shaped}."]
        self._call(kind, port, *chance.choice(CALLS), metadata=(("eps-proof", chance.choice(proofs)),))

    def replayed_call(self, kind: str, chance: random.Random) -> None:
        """Replay a call that an honest process made to the rogue."""
        heard = list(self._rogue.heard)
        if not heard:
            self.tell(kind, "", "unreachable", "no honest process has called the rogue")
            return
        call: HeardCall = chance.choice(heard)
        own = ("user-agent", "te", "content-type", "grpc-timeout", "grpc-accept-encoding", ":")
        metadata = tuple((k, v) for k, v in call.metadata if not k.startswith(own))
        if port := self._port(kind, chance):
            self._call(kind, port, call.method, call.request, metadata)

    def replayed_bytes(self, kind: str, chance: random.Random) -> None:
        """Replay the bytes of an honest connection."""
        recorded = [*self._recorded, *self._rogue.recorded]
        if not recorded:
            self.tell(kind, "", "unreachable", "no bytes of an honest process were seen")
            return
        if port := self._port(kind, chance):
            answer = self._say(port, chance.choice(recorded))
            # Errors are sent with their class names.  The driver judges whether an answered replay counted twice.
            refused = not answer or b"AuthenticationError" in answer or b"grpc-status" not in answer
            self.tell(kind, f"port {port}", "refused" if refused else "answered", repr(answer[:80]))

    def tls_of_another_authority(self, kind: str, chance: random.Random) -> None:
        """Call with a certificate of another authority."""
        if self._certificates is None or not (port := self._port(kind, chance)):
            return
        ca, key, certificate = (
            (self._certificates / f"{name}.pem").read_bytes() for name in ("ca", "key", "certificate")
        )
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection(("127.0.0.1", port), ANSWER_S) as plain:
            plain.settimeout(ANSWER_S)
            with suppress(OSError), context.wrap_socket(plain) as secured:
                # The victim's certificate is public; it is trusted here as an authority.
                ca += ssl.DER_cert_to_PEM_cert(secured.getpeercert(binary_form=True) or b"").encode()
        credentials = grpc.ssl_channel_credentials(ca, key, certificate)
        options = [("grpc.ssl_target_name_override", "eps-job"), ("grpc.enable_retries", 0)]
        method, request = chance.choice(CALLS)
        channel = grpc.secure_channel(f"127.0.0.1:{port}", credentials, options=options)
        self._ask(kind, f"port {port} {method}", channel, method, request)

    # ---- bytes

    def _say(self, port: int, *pieces: bytes) -> bytes:
        """Send bytes to a port; return its answer within :data:`ANSWER_S`."""
        with socket.create_connection(("127.0.0.1", port), ANSWER_S) as line:
            return _exchange(line, *pieces)

    def _tell_bytes(self, kind: str, port: int, answer: bytes) -> None:
        self.tell(kind, f"port {port}", "refused", f"{len(answer)} bytes came back")

    def garbage(self, kind: str, chance: random.Random) -> None:
        """Send random bytes."""
        if port := self._port(kind, chance):
            self._tell_bytes(kind, port, self._say(port, chance.randbytes(chance.choice([1, 64, 65_536]))))

    def half_open_stream(self, kind: str, chance: random.Random) -> None:
        """Begin an HTTP/2 connection and a request, and stop there."""
        if port := self._port(kind, chance):
            headers = b"\0\x40\0\x01\x00" + struct.pack(">I", 1) + b"\x82"
            self._tell_bytes(kind, port, self._say(port, _PREFACE + _SETTINGS, headers))

    def huge_frame(self, kind: str, chance: random.Random) -> None:
        """Announce the largest possible frame, in HTTP/2 or on the data plane, and send a part of it."""
        if port := self._port(kind, chance):
            http2 = _PREFACE + _SETTINGS + b"\xff\xff\xff\x00\x00" + struct.pack(">I", 1)
            van = b"EPSH\x01\0\0\0" + chance.randbytes(32) + b"\xff" * 64
            self._tell_bytes(kind, port, self._say(port, chance.choice([http2, van]), bytes(1 << 20)))

    def slow_bytes(self, kind: str, chance: random.Random) -> None:
        """Send a preface byte by byte."""
        if port := self._port(kind, chance):
            with socket.create_connection(("127.0.0.1", port), ANSWER_S) as line:
                _trickle(line, _PREFACE)
            self.tell(kind, f"port {port}", "held", f"for {SLOW_S:g} s")

    def churn(self, kind: str, chance: random.Random) -> None:
        """Connect and disconnect repeatedly."""
        if port := self._port(kind, chance):
            for _ in range(CROWD):
                socket.create_connection(("127.0.0.1", port), ANSWER_S).close()
            self.tell(kind, f"port {port}", "held", f"{CROWD} connections one after the other")

    def crowd(self, kind: str, chance: random.Random) -> None:
        """Hold silent connections."""
        if port := self._port(kind, chance):
            self._hold(kind, port, CROWD, SLOW_S)

    def flood(self, kind: str, chance: random.Random) -> None:
        """Hold more connections than a process can have, silent or with half a request; one flood at a time."""
        port = self._page(kind, chance) if chance.random() < 0.5 else self._port(kind, chance)
        if port and self._flooding.acquire(blocking=False):
            try:
                lasts_s = chance.uniform(FEWEST_FLOOD_S, self._flood_s)
                said = chance.choice([b"", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "])
                self._hold(kind, port, FLOOD, lasts_s, said)
            finally:
                self._flooding.release()

    def _hold(self, kind: str, port: int, count: int, lasts_s: float, said: bytes = b"") -> None:
        held = 0
        with ExitStack() as stack:
            with suppress(OSError):
                for _ in range(count):
                    line = stack.enter_context(socket.create_connection(("127.0.0.1", port), ANSWER_S))
                    held += 1
                    if said:
                        line.send(said)
            time.sleep(lasts_s)
        self.tell(kind, f"port {port}", "held", f"{held} connections for {lasts_s:.1f} s")

    def handshake(self, kind: str, chance: random.Random) -> None:
        """Send a false proof on the data plane, or the listener's own proof."""
        if port := self._port(kind, chance):
            with socket.create_connection(("127.0.0.1", port), ANSWER_S) as line:
                self._shake(kind, f"port {port}", line, chance)

    def _shake(self, kind: str, where: str, line: socket.socket, chance: random.Random) -> None:
        answer = _exchange(line, b"EPSH\x01\0\0\0" + chance.randbytes(32), until=64)
        proof = chance.choice([answer[32:64] or bytes(32), chance.randbytes(32)])
        greeting = _exchange(line, proof)
        outcome = "accepted" if greeting.startswith(_GREETING) else "refused"
        self.tell(kind, where, outcome, f"{len(answer)} and {len(greeting)} bytes came back")

    def unix_socket(self, kind: str, chance: random.Random) -> None:
        """Connect to a Unix socket by name or path, and send a false proof."""
        names, paths = unix_sockets()
        places = sorted(name for name in names if not name.startswith("@stranger")) + sorted(paths)
        if not places:
            self.tell(kind, "any", "unreachable", "the victims listen on no Unix socket")
            return
        place = chance.choice(places)
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(ANSWER_S)
            try:
                line.connect("\0" + place[1:] if place.startswith("@") else place)
            except PermissionError as error:
                self.tell(kind, place, "refused", str(error))
                return
            if place.startswith("@"):
                self._shake(kind, place, line, chance)
                return
        # A socket in a private folder cannot be reached at all.
        self.tell(kind, place, "accepted", "it accepts connections")

    # ---- pages

    def _page(self, kind: str, chance: random.Random) -> int:
        """Return a port that serves HTTP; report the attempt and return 0 if there is none."""
        ports = sorted(listening_ports(self._owner))
        chance.shuffle(ports)
        for port in ports:
            is_page, since_s = self._pages.get(port, (False, 0.0))
            if not is_page and time.monotonic() - since_s > KNOWN_S:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), PROBE_S) as line:
                    answer = _exchange(line, b"OPTIONS / HTTP/1.0\r\n\r\n", within_s=PROBE_S)
                    is_page = answer.startswith(b"HTTP/1")
                self._pages[port] = is_page, time.monotonic()
            if is_page:
                return port
        self.tell(kind, "any page", "unreachable", "no port answers HTTP")
        return 0

    def _request(self, kind: str, port: int, request: bytes, *, public: bool = False) -> None:
        first = self._say(port, request).partition(b"\r\n")[0]
        ok = b" 200 " in first
        self.tell(kind, f"port {port}", ("answered" if public else "accepted") if ok else "refused", repr(first))

    def wrong_host(self, kind: str, chance: random.Random) -> None:
        """Request a page with a foreign host name, as in DNS rebinding."""
        if port := self._page(kind, chance):
            path = chance.choice(["/metrics", "/metrics", "/", "/report.json"])
            self._request(
                kind, port, f"GET {path} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n".encode()
            )

    def big_headers(self, kind: str, chance: random.Random) -> None:
        """Send more and longer headers than any browser does."""
        if port := self._page(kind, chance):
            lines = [b"X-%d: " % number + b"x" * 60_000 for number in range(chance.choice([2, 200]))]
            head = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            self._request(kind, port, head + b"\r\n".join(lines) + b"\r\n\r\n", public=True)

    def slow_request(self, kind: str, chance: random.Random) -> None:
        """Send a request byte by byte, without an end."""
        if port := self._page(kind, chance):
            with socket.create_connection(("127.0.0.1", port), ANSWER_S) as line:
                _trickle(line, b"GET / HTTP/1.1\r\nHost: localhost\r\n")
            self.tell(kind, f"port {port}", "held", f"for {SLOW_S:g} s")

    def wrong_method(self, kind: str, chance: random.Random) -> None:
        """Send a page a method that would change something."""
        if port := self._page(kind, chance):
            method = chance.choice(["POST", "PUT", "DELETE"])
            body = f"{method} / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nConnection: close\r\n\r\nkill=true"
            self._request(kind, port, body.encode())

    def read_page(self, kind: str, chance: random.Random) -> None:
        """Request a page as any user may."""
        if port := self._page(kind, chance):
            path = chance.choice(["/metrics", "/", "/../../token", "/nothing"])
            head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            self._request(kind, port, head.encode(), public=True)

    # ---- files and names

    def plant(self, kind: str, chance: random.Random) -> None:
        """Create a file, link, folder or socket where the victims have theirs, or move theirs away."""
        folders = [*self._folders, *(Path(path).parent for path in unix_sockets()[1]), *self._theirs()]
        folder = chance.choice(folders)
        name = chance.choice(["master.json", "token", "lock", "master.sock", "service.json", "job.json"])
        made = folder / name

        def link() -> None:
            made.symlink_to(self._scratch)

        def listen() -> None:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.bind(str(made))

        ways: list[Callable[[], object]] = [
            lambda: made.write_text(MARK),
            link,
            made.mkdir,
            listen,
            made.unlink,
            lambda: folder.rename(folder.with_name(MARK)),
        ]
        try:
            chance.choice(ways)()
        except FileNotFoundError:
            self.tell(kind, str(made), "unreachable", "")
        except OSError as error:
            self.tell(kind, str(made), "refused", str(error))
        else:
            self.tell(kind, str(made), "accepted", "it succeeded")

    def _theirs(self) -> list[Path]:
        """Return the victims' temporary files."""
        found = []
        with suppress(OSError):
            for entry in os.scandir(self._temporary):
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_uid == self._owner:
                        found.append(Path(entry.path))
        return found

    def squat_name(self, kind: str, chance: random.Random) -> None:
        """Take a name that the victims use or used, of an abstract socket or a temporary file."""
        if chance.random() < 0.5 and self._names:
            name = chance.choice(sorted(self._names))
            with socket.socket(socket.AF_UNIX) as sock:
                try:
                    sock.bind("\0" + name[1:])
                    sock.listen()
                except OSError as error:
                    self.tell(kind, name, "refused", str(error))
                    return
                self.tell(kind, name, "held", f"it is no longer used; for {SLOW_S:g} s")
                time.sleep(SLOW_S)
            return
        mine = [f"eps-{self._owner}", f"eps-{os.getpid() + 1}", "eps", "hscheduler", *(p.name for p in self._theirs())]
        made = self._temporary / chance.choice(mine)
        try:
            made.mkdir()
            made.chmod(0o777)
        except OSError as error:
            self.tell(kind, str(made), "refused", str(error))
            return
        self.tell(kind, str(made), "held", f"for {SLOW_S:g} s")
        time.sleep(SLOW_S)
        # If a victim used it, it is not empty; it stays for the driver to find.
        with suppress(OSError):
            made.rmdir()
            return
        self.tell(kind, str(made), "accepted", "a victim used it")

    def squat_port(self, kind: str, chance: random.Random) -> None:
        """Listen on a port that the victims may use next."""
        ports = sorted(listening_ports(self._owner) or self._ports)
        near = chance.choice(ports) + chance.randrange(-2, 3) if ports else chance.randrange(32768, 60999)
        if not (0 < near < 65536 and self._rogue.take(near, kind)):
            self.tell(kind, f"port {near}", "refused", "it is taken")

    def read_secrets(self, kind: str, chance: random.Random) -> None:
        """Read the victims' files and the memory of their processes."""
        places = [folder / name for folder in self._folders for name in ("token", "tls/key.pem", "job.json")]
        pids = [Path("/proc", str(pid), name) for pid in self._pids for name in ("environ", "mem", "maps")]
        place = chance.choice([*places, *pids, *self._folders])
        try:
            found = os.listdir(place) if place in self._folders else place.open("rb").read(16)
        except (FileNotFoundError, ProcessLookupError) as error:
            self.tell(kind, str(place), "unreachable", str(error))
        except OSError as error:
            self.tell(kind, str(place), "refused", str(error))
        else:
            # Files of a process that has just exited are empty.
            self.tell(kind, str(place), "accepted" if found else "unreachable", repr(found))

    def signal(self, kind: str, chance: random.Random) -> None:
        """Send a signal to a process of the victims."""
        if not self._pids:
            return
        pid = chance.choice(self._pids)
        try:
            if os.stat(f"/proc/{pid}").st_uid != self._owner:
                # The pid belongs to another process now.
                return
            os.kill(pid, chance.choice([signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM]))
        except (ProcessLookupError, FileNotFoundError):
            self.tell(kind, f"process {pid}", "unreachable", "")
        except OSError as error:
            self.tell(kind, f"process {pid}", "refused", str(error))
        else:
            self.tell(kind, f"process {pid}", "accepted", "it succeeded")


def kind_of(attack: Callable[..., None]) -> str:
    """Return the name of an attack in the result."""
    return attack.__name__.replace("_", " ")


def _outcome(error: Any) -> str:
    """Return the outcome of a call that ended with an error."""
    code, text = error.code(), error.details() or ""
    if code in _STATUS_REFUSED:
        return "refused"
    if code is grpc.StatusCode.UNAVAILABLE:
        # For any other reason, the victim closed the connection.
        return "unreachable" if "Connection refused" in text else "refused"
    # Any other status shows that a victim processed the call.
    return "unreachable" if code in _STATUS_UNREACHABLE else "accepted"


def _exchange(line: socket.socket, *pieces: bytes, until: int = 1 << 16, within_s: float = ANSWER_S) -> bytes:
    """Send bytes; return the answer within ``within_s``."""
    answer, deadline_s = b"", time.monotonic() + within_s
    line.settimeout(within_s)
    with suppress(OSError):
        for piece in pieces:
            line.sendall(piece)
    with suppress(OSError):
        while len(answer) < until and time.monotonic() < deadline_s:
            if not (data := line.recv(until - len(answer))):
                break
            answer += data
    return answer


def _trickle(line: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        for number in range(int(SLOW_S / 0.1)):
            line.send(data[number % len(data) :][:1])
            time.sleep(0.1)


def become(uid: int) -> None:
    """Drop to the rights of another user; exit with the parent process."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, most), most))
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # After the change of user, which clears it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def warm_up() -> None:
    """Make Python and gRPC import their lazy modules now: another user cannot read root's files."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with suppress(grpc.RpcError), grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        next(channel.stream_stream("/warm/Up")(iter([b""]), timeout=ANSWER_S))
    socket.create_connection(("127.0.0.1", port), ANSWER_S).close()
    ssl.create_default_context()
    server.stop(0).wait(ANSWER_S)


if __name__ == "__main__":
    first_line = json.loads(sys.stdin.readline())
    warm_up()
    become(int(first_line["uid"]))
    Stranger(first_line).run()
    sys.stdout.flush()
    # Exit without waiting for threads that still attack.
    os._exit(0)
