"""A small HDFS that speaks WebHDFS over real HTTP, with faults to order.

One NameNode or several, of which one is active, and DataNodes with an address of their own each, so that they can be
left out.  Its files are in memory.
"""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

PREFIX = "/webhdfs/v1"
#: By HTTP, as WebHDFS gives them.
STATUS = {"FileNotFoundException": 404, "IllegalArgumentException": 400, "NullPointerException": 500}


class RemoteError(Exception):
    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


@dataclass
class Node:
    number: int
    #: None of a folder.
    content: bytes | None
    mode: str
    modified_ms: int = field(default_factory=lambda: int(time.time() * 1000))


@dataclass
class Fault:
    """What happens to the next requests of an operation."""

    op: str
    #: ``error``, ``dead`` (redirected to a DataNode that is none, or to ``name``), ``cut`` (the connection ends after
    #: so many bytes of content, or before the answer), ``unanswered`` (it is done, and the connection ends), ``no``
    #: (it is not done, and that is no error), ``stranger`` (what listens there is no WebHDFS).
    kind: str
    name: str = ""
    message: str = ""
    bytes: int = 0
    #: At the DataNodes, not the NameNode.
    at_data_node: bool = False
    left: int = 1


class FakeHdfs:
    """Runs from the start of the ``with`` block to its end."""

    def __init__(self, *, namenodes: int = 1, datanodes: int = 2) -> None:
        self.nodes: dict[str, Node] = {"/": Node(1, None, "755")}
        self.faults: list[Fault] = []
        #: (operation, path, parameters, whether it was a DataNode's) of every request.
        self.requests: list[tuple[str, str, dict[str, str], bool]] = []
        #: Number of the NameNode that is active.
        self.active = 0
        self.lock = threading.RLock()
        self.connections: set[socket.socket] = set()
        self._number = 1
        self._servers = [self._serve("127.0.0.1", None) for _ in range(namenodes)]
        self._namenodes = list(self._servers)
        self.data_nodes = [f"127.0.0.{2 + i}" for i in range(datanodes)]
        self._data_servers = {host: self._serve(host, host) for host in self.data_nodes}
        self._servers += self._data_servers.values()
        self._threads = [threading.Thread(target=s.serve_forever, args=(0.02,), daemon=True) for s in self._servers]

    def _serve(self, host: str, data_node: str | None) -> ThreadingHTTPServer:
        class Handler(_Handler):
            fake = self

        Handler.data_node = data_node
        server = ThreadingHTTPServer((host, 0), Handler)
        server.daemon_threads = True
        Handler.port = server.server_address[1]
        return server

    def __enter__(self) -> FakeHdfs:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        for thread in self._threads:
            thread.join()
        # Clients keep connections open for what they ask next.
        with self.lock:
            for connection in self.connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    @property
    def ports(self) -> list[int]:
        """Ports of the NameNodes, which listen on 127.0.0.1."""
        return [server.server_address[1] for server in self._namenodes]

    @property
    def authority(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    def fault(self, op: str, kind: str, **rest: Any) -> None:
        """Order a fault; those of one operation happen in the order given."""
        with self.lock:
            self.faults.append(Fault(op, kind, **rest))

    def asked(self, op: str, *, at_data_node: bool = False) -> list[dict[str, str]]:
        """Return the parameters of the requests of an operation."""
        with self.lock:
            return [params for name, _, params, data in self.requests if name == op and data == at_data_node]

    def take_fault(self, op: str, at_data_node: bool) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.op in (op, "*") and fault.at_data_node == at_data_node:
                    fault.left -= 1
                    if not fault.left:
                        self.faults.remove(fault)
                    return fault
        return None

    # ---- the tree

    def data_address(self, op: str, excluded: str) -> str:
        for host, server in self._data_servers.items():
            if host not in excluded.split(","):
                return f"{host}:{server.server_address[1]}"
        if op == "CREATE":
            text = f"Failed to find datanode, suggest to check cluster health. excludeDatanodes={excluded or 'null'}"
        else:
            text = "No active and not excluded nodes contain this block"
        raise RemoteError("IOException", text)

    def number(self) -> int:
        self._number += 1
        return self._number

    def find(self, path: str) -> Node:
        if path not in self.nodes:
            raise RemoteError("FileNotFoundException", f"File does not exist: {path}")
        return self.nodes[path]

    def make_folders(self, path: str, mode: str) -> None:
        parts = path.strip("/").split("/") if path != "/" else []
        for i in range(1, len(parts) + 1):
            folder = "/" + "/".join(parts[:i])
            node = self.nodes.setdefault(folder, Node(self.number(), None, mode))
            if node.content is not None:
                raise RemoteError("ParentNotDirectoryException", f"{folder} (is not a directory)")

    def put(self, path: str, content: bytes) -> None:
        """Write a file, as somebody else."""
        with self.lock:
            self.make_folders(path.rpartition("/")[0] or "/", "755")
            self.nodes[path] = Node(self.number(), content, "644")

    def create(self, path: str, params: dict[str, str]) -> Node:
        with self.lock:
            if "//" in path:
                raise RemoteError("InvalidPathException", f"Invalid path name {path}")
            if path in self.nodes:
                raise RemoteError("FileAlreadyExistsException", f"{path} already exists as a file or a folder")
            self.make_folders(path.rpartition("/")[0] or "/", "755")
            return self.nodes.setdefault(path, Node(self.number(), b"", params.get("permission", "644")))

    def fill(self, node: Node, content: bytes) -> None:
        """Have a file hold what was sent; one that was removed meanwhile stays so."""
        node.content = content

    def rename(self, source: str, target: str, options: str) -> None:
        moved, taken = self.find(source), self.nodes.get(target)
        if taken is not None:
            if options != "OVERWRITE":
                raise RemoteError("FileAlreadyExistsException", f"rename destination {target} already exists")
            if (taken.content is None) != (moved.content is None):
                text = f"Source {source} and destination {target} must both be directories"
                raise RemoteError("FileAlreadyExistsException", text)
        if (target.rpartition("/")[0] or "/") not in self.nodes:
            raise RemoteError("FileNotFoundException", f"rename destination parent {target} not found.")
        for path in [p for p in self.nodes if p == source or p.startswith(f"{source}/")]:
            self.nodes[target + path[len(source) :]] = self.nodes.pop(path)

    def delete(self, path: str) -> bool:
        gone = [p for p in self.nodes if p == path or p.startswith(f"{path.rstrip('/')}/")]
        for each in gone:
            if each != "/":
                del self.nodes[each]
        return bool(gone)

    def listing(self, path: str) -> list[dict[str, Any]]:
        if self.find(path).content is not None:
            return [self.status(path)]
        prefix = "/" if path == "/" else f"{path}/"
        inside = [p for p in self.nodes if p.startswith(prefix) and p != "/" and "/" not in p[len(prefix) :]]
        return [{**self.status(p), "pathSuffix": p[len(prefix) :]} for p in inside]

    def status(self, path: str) -> dict[str, Any]:
        node = self.find(path)
        return {
            "pathSuffix": "",
            "type": "DIRECTORY" if node.content is None else "FILE",
            "length": len(node.content or b""),
            "modificationTime": node.modified_ms,
            "fileId": node.number,
            "permission": node.mode,
        }


class _Handler(BaseHTTPRequestHandler):
    fake: FakeHdfs
    #: Its host; None of a NameNode.
    data_node: str | None
    port: int
    protocol_version = "HTTP/1.1"
    # Head and body are two writes: the second must not wait for the first to be acknowledged.
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        with self.fake.lock:
            self.fake.connections.add(self.connection)

    def finish(self) -> None:
        super().finish()
        with self.fake.lock:
            self.fake.connections.discard(self.connection)

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        params = dict(parse_qsl(parts.query))
        path, op = unquote(parts.path.removeprefix(PREFIX)) or "/", params.get("op", "")
        with self.fake.lock:
            self.fake.requests.append((op, path, params, self.data_node is not None))
        fault = self.fake.take_fault(op, self.data_node is not None)
        try:
            if self.data_node is not None:
                self._data(op, path, params, fault)
            else:
                self._name(op, path, params, fault)
        except RemoteError as error:
            self._refuse(error)
        except (_Cut, ConnectionError):
            self.close_connection = True

    def _refuse(self, error: RemoteError) -> None:
        text = json.dumps({"RemoteException": {"exception": error.name, "message": str(error)}})
        self._answer(STATUS.get(error.name, 403), text.encode())

    def _answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    # ---- a NameNode

    def _name(self, op: str, path: str, params: dict[str, str], fault: Fault | None) -> None:
        fake = self.fake
        if fault is not None and fault.kind == "cut":
            raise _Cut
        if self.port != fake.ports[fake.active]:
            raise RemoteError("StandbyException", "Operation category READ is not supported in state standby")
        if fault is not None and fault.kind == "error":
            raise RemoteError(fault.name, fault.message)
        if op in ("CREATE", "OPEN"):
            self._redirect(op, path, params, fault)
            return
        with fake.lock:
            # As HttpFS, which knows no options, where the target is taken.
            found = {"boolean": False} if fault is not None and fault.kind == "no" else self._do(op, path, params)
        if fault is not None and fault.kind == "unanswered":
            raise _Cut
        self._answer(200, json.dumps(found).encode())

    def _redirect(self, op: str, path: str, params: dict[str, str], fault: Fault | None) -> None:
        with self.fake.lock:
            if op != "CREATE" and self.fake.find(path).content is None:
                raise RemoteError("FileNotFoundException", f"Path is not a file: {path}")
            address = self.fake.data_address(op, params.get("excludedatanodes", ""))
        if fault is not None and fault.kind == "dead":
            host = address.partition(":")[0]
            address = fault.name or f"{host}:{_dead_port(host)}"
        query = "&".join(f"{k}={quote(v)}" for k, v in params.items() if k != "noredirect")
        location = f"http://{address}{PREFIX}{quote(path)}?{query}"
        if params.get("noredirect") == "true":
            self._answer(200, json.dumps({"Location": location}).encode())
        else:
            self._answer(307, Location=location)

    def _do(self, op: str, path: str, params: dict[str, str]) -> Any:
        fake = self.fake
        if op == "GETFILESTATUS":
            return {"FileStatus": fake.status(path)}
        if op == "LISTSTATUS":
            return {"FileStatuses": {"FileStatus": fake.listing(path)}}
        if op == "MKDIRS":
            fake.make_folders(path, params.get("permission", "755"))
            return {"boolean": True}
        if op == "DELETE":
            return {"boolean": fake.delete(path)}
        if op == "RENAME":
            fake.rename(path, params["destination"], params.get("renameoptions", ""))
            return {}
        if op == "MODIFYACLENTRIES":
            # Who asks is admitted all the same: the requests say what was to be.
            return {}
        raise RemoteError("UnsupportedOperationException", op)

    # ---- a DataNode

    def _data(self, op: str, path: str, params: dict[str, str], fault: Fault | None) -> None:
        if fault is not None and fault.kind == "error":
            raise RemoteError(fault.name, fault.message)
        if fault is not None and fault.kind == "stranger":
            self._answer(404, b"<html>")
            return
        cut = fault.bytes if fault is not None and fault.kind == "cut" else None
        if op == "CREATE":
            length = int(self.headers["Content-Length"])
            try:
                # It is there before its content is.
                node = self.fake.create(path, params)
            finally:
                content = self.rfile.read(length if cut is None else min(cut, length))
            self.fake.fill(node, content)
            if len(content) < length or cut is not None:
                # As of a DataNode that is killed: the file ends somewhere.
                raise _Cut
            self._answer(201)
        elif op == "OPEN":
            with self.fake.lock:
                content = (self.fake.find(path).content or b"")[int(params.get("offset", 0)) :]
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content if cut is None else content[:cut])
            if cut is not None:
                raise _Cut
        elif op == "GETFILECHECKSUM":
            with self.fake.lock:
                found = hashlib.md5(self.fake.find(path).content or b"").hexdigest()
            answer = {"algorithm": "MD5-of-0MD5-of-512CRC32C", "bytes": found, "length": 28}
            self._answer(200, json.dumps({"FileChecksum": answer}).encode())


class _Cut(Exception):
    """The connection ends here."""


def _dead_port(host: str) -> int:
    """Return a port where nobody listens."""
    with ThreadingHTTPServer((host, 0), BaseHTTPRequestHandler) as server:
        return int(server.server_address[1])


@contextmanager
def refusing_connections(fake: FakeHdfs) -> Iterator[None]:
    """Break every connection to a NameNode before it answers."""
    forever = Fault("*", "cut", left=1 << 30)
    with fake.lock:
        fake.faults.insert(0, forever)
    try:
        yield
    finally:
        with fake.lock:
            fake.faults.remove(forever)
