"""What to do about a container that ended, as words of its reason, for whoever shows that.  L2, pure."""

from __future__ import annotations

CHECK_IMAGE = "the image must have Python with EPS, and what the model imports (docker/README.md)"
