"""``python -m eps`` is ``eps``."""

from __future__ import annotations

import sys

from eps.cli import main

if __name__ == "__main__":
    sys.exit(main())
