"""What to do about an application that ended, as words of its reason.  Pure.

Alone here, for whoever shows a reason needs no more of YARN than to find these words in it.
"""

from __future__ import annotations

CHECK_PYTHON = "the setting python must name an interpreter with EPS's packages on every node, or an archive of one"
CHECK_FILES = "its files must be there, readable and whole; what EPS's own cache lacks is brought with the next job"
CHECK_MEMORY = "give it more, as memory_mb=4096,master=2048 does"
CHECK_VIRTUAL = f"{CHECK_MEMORY}, or have yarn.nodemanager.vmem-check-enabled set to false"
