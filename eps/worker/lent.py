"""Parameters that a worker takes where they were received, without a copy.

Source: performance.md section 1 (the least copies); design section 2 (the van lends arrays).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eps.net.messages.exchange import PullAnswer
from eps.worker.compute import ActiveSet

#: Most parameters that are taken so, in bytes: while they are in use the server cannot use their memory again.
MOST_LENT_BYTES = 16 << 20


def lent_whole(active: ActiveSet, answers: Sequence[PullAnswer]) -> np.ndarray | None:
    """Return all parameters of a clock as one array, where the answers hold them side by side; None elsewhere.

    Only where every split gathers what it needs of them: the array may be another process's, for reading only, and a
    model may write to the parameters that it is given.

    Parameters
    ----------
    active : ActiveSet
    answers : sequence of PullAnswer
        That came together.

    Returns
    -------
    ndarray, shape (active.size,), float32, or None
    """
    if len(answers) != len(active.spans) or 4 * active.size > MOST_LENT_BYTES or not len(answers):
        return None
    if any(positions is None for positions in active.positions.values()):
        return None
    base = answers[0].values.base
    if not isinstance(base, np.ndarray) or base.dtype != np.float32 or base.ndim != 1 or len(base) < active.size:
        return None
    begin = answers[0].values.__array_interface__["data"][0]
    for answer in answers:
        a, b, _, _ = active.spans[answer.partition]
        values = answer.values
        if answer.unchanged or values.base is not base or len(values) != b - a or not values.flags.c_contiguous:
            return None
        if values.__array_interface__["data"][0] != begin + 4 * a:
            return None
    first = (begin - base.__array_interface__["data"][0]) // base.itemsize
    return base[first : first + active.size]
