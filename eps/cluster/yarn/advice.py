"""Advice at the end of the reason why an application ended.  Pure.

A module of its own: code that shows a reason looks for this advice in it, and needs nothing else of YARN.
"""

from __future__ import annotations

CHECK_PYTHON = "the setting python must name an interpreter with EPS's packages on every node, or an archive of one"
CHECK_FILES = (
    "check that its files on the cluster exist and are readable; the next job uploads what EPS's cache there lacks"
)
CHECK_MEMORY = "give it more memory, for example memory_mb=4096,master=2048"
CHECK_VIRTUAL = f"{CHECK_MEMORY}, or set yarn.nodemanager.vmem-check-enabled to false"
