"""What runs in the containers of a contract test: a member that stays until it is ended."""

from __future__ import annotations

import signal

from eps.cluster.supervisor.process import END, ContainerContext


def run_member(context: ContainerContext) -> int:
    behaviour = context.env.get("EPS_TEST_BEHAVIOUR", "")
    if behaviour.startswith("exit "):
        return int(behaviour.split()[1])
    if behaviour == "ignore-end":
        signal.signal(END, signal.SIG_IGN)
    if behaviour == "eat":
        print(len(bytearray(1 << 30)))
    print("here", flush=True)
    while True:
        signal.pause()
