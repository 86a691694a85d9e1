"""A program with Java in it that plays each trap of Java in Python; it prints its observations.

Run as ``python -m tests.yarn.java_script``; at its end it waits for SIGTERM.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from types import FrameType

from eps.errors import ResourceError
from eps.hadoop.bridge import java, jlong, start_jvm

TERMINATED = 3


def main() -> None:
    """Play the traps."""

    def on_terminate(number: int, frame: FrameType | None) -> None:
        raise SystemExit(TERMINATED)

    # Before the start: the machine must not replace the handler.
    signal.signal(signal.SIGTERM, on_terminate)
    start_jvm()
    start_jvm()
    say("started twice, one machine", java("java.lang.System").getProperty("java.version") is not None)
    say("a forked child is refused", forked() == "refused")
    say("a spawned child is not hindered", subprocess.run([sys.executable, "-c", ""], check=False).returncode == 0)
    say("an interrupt is Python's", interrupted())
    say("a call leaves other threads alone", ticks_meanwhile() > 10)
    say("memory in MB", resident_mb())
    try:
        print("ready", flush=True)
        while True:
            signal.pause()
    finally:
        say("finally ran", True)


def say(what: str, value: object) -> None:
    print(f"{what}: {value}", flush=True)


def forked() -> str:
    """Call Java in a forked child, which would hang without the guard; return the result."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            java("java.lang.System")
            os.write(writing, b"answered")
        except ResourceError:
            os.write(writing, b"refused")
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        text = said.read()
    os.waitpid(pid, 0)
    return text


def interrupted() -> bool:
    """Send this process SIGINT; return whether Python handled it."""
    try:
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
    except KeyboardInterrupt:
        return True
    return False


def ticks_meanwhile() -> int:
    """Return how often another thread ran while this one was in Java."""
    done, ticks = threading.Event(), 0

    def tick() -> None:
        nonlocal ticks
        while not done.wait(0.001):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    java("java.lang.Thread").sleep(jlong(300))
    done.set()
    thread.join()
    return ticks


def resident_mb() -> int:
    """Return the memory of this process."""
    with open("/proc/self/status", encoding="ascii") as status:
        (line,) = (line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) // 1024


if __name__ == "__main__":
    main()
