"""Key sets that come with a snapshot are checked before any of them is registered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from eps.errors import ProtocolError
from eps.net.messages.exchange import keyset_digest
from eps.server.checks import check_keysets, divided
from eps.spec.job_spec import JobSpec
from eps.spec.runtime import DataShape, Runtime


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    values = {"model": "linear", "splits": 2, "partitions": 2, "iterations": 3, "workers": 1, "servers": 1}
    shape = DataShape(100, 1, (10, 10), sparse=False, test_rows=0, split_checksums=("", ""))
    return Runtime("job", JobSpec.from_dict(values), shape, Path("unused"), Path("unused"))


def keys_of(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_key_sets_of_the_partition_are_taken(runtime: Runtime) -> None:
    start, stop = runtime.ranges[1]
    keysets = [keys_of(start, start + 3, stop - 1), keys_of(), keys_of(stop - 1)]
    check_keysets(runtime, 1, [keyset_digest(keys) for keys in keysets], keysets)


@pytest.mark.parametrize("order", [(2, 1), (1, 1), (1, 3, 2)])
def test_keys_that_are_not_ascending_and_unique_are_refused(runtime: Runtime, order: tuple[int, ...]) -> None:
    keys = runtime.ranges[1][0] + keys_of(*order)
    with pytest.raises(ProtocolError, match="ascending"):
        check_keysets(runtime, 1, [keyset_digest(keys)], [keys])


@pytest.mark.parametrize(("end", "step"), [(0, -1), (1, 0)])
def test_keys_beyond_the_partition_are_refused(runtime: Runtime, end: int, step: int) -> None:
    keys = keys_of(runtime.ranges[0][end] + step)
    with pytest.raises(ProtocolError, match="for partition 0"):
        check_keysets(runtime, 0, [keyset_digest(keys)], [keys])


def test_keys_of_another_digest_are_refused(runtime: Runtime) -> None:
    start = runtime.ranges[0][0]
    with pytest.raises(ProtocolError, match="digest"):
        check_keysets(runtime, 0, [keyset_digest(keys_of(start))], [keys_of(start + 1)])


def test_numbers_of_key_sets_that_cannot_be_are_refused(runtime: Runtime) -> None:
    with pytest.raises(ProtocolError, match="names 0"):
        check_keysets(runtime, 0, [], [keys_of()])
    with pytest.raises(ProtocolError, match="with 2 key sets"):
        divided((keys_of(),), 2)
