"""A Java that is none: it plays the daemons of Hadoop as far as ``eps devcluster`` can tell.

It listens where the site files say.  Its ResourceManager counts the NodeManagers that answer, its NameNode the
DataNodes that listen.
``FAKE_JAVA`` says who behaves badly, as ``resourcemanager=dies,nodemanager-1=deaf``:

dies
    says something, and ends.
silent
    never answers.
deaf
    does not end at SIGTERM.
"""

from __future__ import annotations

# Only what starts fast: there are many of it.
import json
import os
import re
import signal
import socket
import struct
import sys

CLASSES = {"NameNode": "namenode", "DataNode": "datanode", "ResourceManager": "resourcemanager"}
WEB = {
    "namenode": "dfs.namenode.http-address",
    "datanode": "dfs.datanode.http.address",
    "resourcemanager": "yarn.resourcemanager.webapp.address",
    "nodemanager": "yarn.nodemanager.webapp.address",
}


def values_in(folder: str) -> dict[str, str]:
    found = {}
    for name in ("hdfs-site.xml", "yarn-site.xml"):
        with open(f"{folder}/{name}", encoding="utf-8") as file:
            found.update(re.findall("<name>(.*)</name><value>(.*)</value>", file.read()))
    return found


def listens(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def answers(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=0.2) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return bool(connection.recv(1))
    except OSError:
        return False


def answer_to(path: str, conf: str) -> object:
    if "RMNMInfo" in path:
        nodes = [values_in(f"{conf}/nodes/{number}")[WEB["nodemanager"]] for number in os.listdir(f"{conf}/nodes")]
        there = [{"HostName": node.partition(":")[0], "State": "RUNNING"} for node in nodes if answers(node)]
        return {"beans": [{"LiveNodeManagers": json.dumps(there)}]}
    if "QueueMetrics" in path:
        return {"beans": [{"AppsRunning": int(os.environ.get("FAKE_APPLICATIONS", "0")), "AppsPending": 0}]}
    if "FSNamesystemState" in path:
        alive = int(listens(values_in(conf)[WEB["datanode"]]))
        return {"beans": [{"NumLiveDataNodes": alive, "FSState": "Operational"}]}
    return {}


def realm(words: list[str]) -> int:
    """Play the program of a realm: it writes keys, says so, and listens."""
    _, properties, keytab, *principals = words
    with open(properties, encoding="ascii") as file:
        port = dict(line.strip().split("=") for line in file)["kdc.port"]
    server = socket.create_server(("127.0.0.1", int(port)))
    with open(keytab, "wb") as file:
        file.write(b"\5\2")
        for name in principals:
            parts = ["EPS.DEV", *name.split("/")]
            entry = struct.pack(">H", len(parts) - 1) + b"".join(struct.pack(">H", len(p)) + p.encode() for p in parts)
            file.write(struct.pack(">i", len(entry)) + entry)
    print("Standalone MiniKdc Running", flush=True)
    while True:
        server.accept()[0].close()


def serve(server: socket.socket, conf: str) -> None:
    while True:
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as file:
            words = file.readline().decode().split()
            if len(words) < 2:
                continue
            headers = {}
            while line := file.readline().decode().strip():
                headers[line.partition(":")[0].lower()] = line.partition(":")[2].strip()
            file.read(int(headers.get("content-length", "0")))
            if words[0] == "POST":
                print(f"asked: {words[1]}", flush=True)
            blob = json.dumps(answer_to(words[1], conf))
            connection.sendall(f"HTTP/1.0 200 OK\r\nContent-Length: {len(blob)}\r\n\r\n{blob}".encode())


def main() -> int:
    if "-version" in sys.argv:
        print('openjdk version "17.0.1" 2021-10-19', file=sys.stderr)
        return 0
    if "CLI" in sys.argv[-2] or "Shell" in sys.argv[-2] or "CLI" in sys.argv[-3]:
        print(os.environ["CLASSPATH"], *sys.argv[-3:])
        return 0
    own = os.environ["CLASSPATH"].split(":")[0]
    values = values_in(own)
    if "-format" in sys.argv:
        names = values["dfs.namenode.name.dir"].removeprefix("file://") + "/current"
        os.makedirs(names)
        open(f"{names}/fsimage_0.md5", "w", encoding="utf-8").close()
        return 0
    name = next(word for word in sys.argv[1:] if not word.startswith("-")).rpartition(".")[2]
    if name == "MiniKdc":
        return realm(sys.argv[-6:])
    kind = CLASSES.get(name, "nodemanager")
    name = kind if kind != "nodemanager" else f"nodemanager-{os.path.basename(own)}"
    manner = dict(word.split("=") for word in os.environ.get("FAKE_JAVA", "").split(",") if word).get(name, "")
    print(f"{name} begins", flush=True)
    if manner == "dies":
        print("something is wrong with it", flush=True)
        return 1
    if manner == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if manner == "silent":
        signal.pause()
    host, _, port = values[WEB[kind]].partition(":")
    try:
        server = socket.create_server((host, int(port)))
    except OSError as error:
        print(f"java.net.BindException: {error}", flush=True)
        return 1
    serve(server, os.environ["HADOOP_CONF_DIR"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
