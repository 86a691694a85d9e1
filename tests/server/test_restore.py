"""A job that goes on from a checkpoint has the bits of one that never stopped: arithmetic and arrays in one loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from eps.core.checkpoints import checkpoint_name
from eps.core.membership import Membership, PartitionTable, SplitTable
from eps.core.messages import CheckpointPartWritten, MembershipAcked, UpdateMembership
from eps.core.progress import ClockHistory
from eps.core.types import Address
from eps.errors import StorageError
from eps.net.arrays.in_process import InProcessVan
from eps.net.messages.exchange import PullPart
from eps.server.partition_store import PartitionStore
from eps.server.partitions import load_partition
from eps.server.shell import ServerShell
from eps.spec.runtime import Runtime, Start, identity
from eps.storage.checkpoint import CheckpointStore, Manifest, open_checkpoints, part_name
from eps.worker.compute import ActiveSet, Computation, Parameters
from tests.fakes.storage import MemoryStorage
from tests.server.test_training_in_process import SPLITS, make_runtime, make_splits

ONE, TWO = [[0, 1, 2, 3]], [[3, 1], [0, 2]]
RULES = [
    {"optimizer": "sgd", "l2": 0.001},
    {"optimizer": "momentum", "l1": 0.0001},
    {"optimizer": "adagrad", "l1": 0.0001},
    {"optimizer": "adam", "l2": 0.0001},
    {"optimizer": "ftrl", "l1": 0.0001},
]


def fresh(runtime: Runtime) -> list[PartitionStore]:
    values = [runtime.key_space.initial_values(a, b, 0) for a, b in runtime.ranges]
    return [PartitionStore(runtime, p, start) for p, start in enumerate(values)]


def train(
    runtime: Runtime,
    stores: list[PartitionStore],
    groups: list[list[int]],
    clocks: range,
    halfway: Callable[[int, int], None] = lambda clock, partition: None,
) -> None:
    """Train these clocks; each group of splits is a worker, and ``halfway`` is called when the first has pushed."""
    splits = make_splits(runtime.sparse)
    workers = [ActiveSet(runtime, {split: splits[split] for split in group}) for group in groups]
    for clock in clocks:
        done = []
        for active in workers:
            parameters = Parameters(np.empty(active.size, np.float32), np.zeros(runtime.key_space.num_blocks, np.int16))
            for p, store in enumerate(stores):
                keys = None if active.keys is None else active.keys_of(p)
                values, exponents = store.pull(clock, PullPart(p, clock, active.keysets[p], keys))
                parameters.values[active.bounds[p] : active.bounds[p + 1]] = values
                parameters.exponents[active.block_bounds[p] : active.block_bounds[p + 1]] = exponents
            done.append((active, Computation(runtime, active, parameters, clock).finish()))
        for p, store in enumerate(stores):
            for i, (active, work) in enumerate(done):
                push = work.push(p)
                keys = None if active.keys is None else active.keys_of(p)
                push = type(push)(
                    p, clock, push.splits, push.samples, push.total, push.maxima, push.keyset, keys, push.raw
                )
                store.accumulate(push, i == 0)
                if i == 0:
                    halfway(clock, p)
            store.step(clock, False)


def checkpoint(runtime: Runtime, stores: list[PartitionStore], clock: int, store: CheckpointStore) -> Manifest:
    name, parts = checkpoint_name(1, clock), []
    for partition, held in enumerate(stores):
        file = part_name(partition, "server-1")
        written = store.write_part(name, file, held.snapshot()[0])
        next_clock = (clock,) * SPLITS
        parts.append(
            CheckpointPartWritten("server-1", 1, partition, file, *written, next_clock, max(0, clock) * SPLITS, 0)
        )
    return store.finish(Manifest(1, clock, identity(runtime), tuple(parts), 1, 1, clock, ""), ClockHistory())


@pytest.mark.parametrize("is_sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["optimizer"]))
def test_any_checkpoint_leads_to_the_bits_of_a_job_that_never_stopped(rule: dict[str, object], is_sparse: bool) -> None:
    runtime = make_runtime(is_sparse, **rule)
    settings = runtime.settings
    undisturbed = fresh(runtime)
    train(runtime, undisturbed, ONE, range(settings.first_clock, settings.iterations))
    for clock in (0, 1, 7):
        store = CheckpointStore(MemoryStorage())
        before = fresh(runtime)
        train(runtime, before, TWO, range(settings.first_clock, clock))
        manifest = checkpoint(runtime, before, clock, store)
        # Training after the snapshot must not change it.
        train(runtime, before, TWO, range(clock, clock + 2))
        found, damaged = store.latest_valid(identity(runtime))
        assert found == manifest and not damaged
        after = [load_partition(store, manifest, p, runtime)[0] for p in range(settings.num_partitions)]
        train(runtime, after, ONE, range(clock, settings.iterations))
        for mine, theirs in zip(undisturbed, after, strict=True):
            assert mine.export().tobytes() == theirs.export().tobytes()
            assert [s.tobytes() for s in mine.snapshot()[0][5:]] == [s.tobytes() for s in theirs.snapshot()[0][5:]]
            assert theirs.ledger() == mine.ledger() == (settings.iterations * SPLITS, 0, 0)


@pytest.mark.parametrize("is_sparse", [True, False], ids=["sparse", "dense"])
def test_partition_that_is_kept_when_some_have_pushed_already_is_that_of_the_clock(is_sparse: bool) -> None:
    runtime = make_runtime(is_sparse)
    stores, kept = fresh(runtime), {}

    def halfway(clock: int, partition: int) -> None:
        if clock == 6:
            kept[partition] = [array.copy() for array in stores[partition].snapshot()[0]]

    train(runtime, stores, TWO, range(-1, 15), halfway)
    after = fresh(runtime)
    for partition, store in enumerate(after):
        store.install(kept[partition])
    train(runtime, after, TWO, range(6, 15))
    for mine, theirs in zip(stores, after, strict=True):
        assert mine.export().tobytes() == theirs.export().tobytes() and mine.ledger() == theirs.ledger()


def test_counters_are_those_of_the_manifest() -> None:
    runtime, store = make_runtime(False), CheckpointStore(MemoryStorage())
    manifest = checkpoint(runtime, fresh(runtime), -1, store)
    _, counters = load_partition(store, manifest, 1, runtime)
    assert (counters.next_clock, counters.applied, counters.duplicates_refused) == ((-1,) * SPLITS, 0, 0)


def test_partition_of_another_job_is_refused() -> None:
    store = CheckpointStore(MemoryStorage())
    adam, sgd = make_runtime(False, optimizer="adam"), make_runtime(False, optimizer="sgd")
    manifest = checkpoint(adam, fresh(adam), 0, store)
    with pytest.raises(StorageError, match=r"0001-00000000: .* 0 "):
        load_partition(store, manifest, 0, sgd)


def test_identity_tells_jobs_apart_by_what_they_train_and_not_by_how() -> None:
    one = make_runtime(False)
    for changes in ({"workers": 3}, {"servers": 2}, {"keep": 5}, {"checkpoint_every": "3s"}, {"at": "3:add-workers=1"}):
        assert identity(make_runtime(False, **changes)) == identity(one), changes
    for changes in ({"seed": 1}, {"optimizer": "sgd"}, {"batch_size": "7"}, {"partitions": 4}, {"consistency": "asp"}):
        assert identity(make_runtime(False, **changes)) != identity(one), changes


def test_identity_of_a_job_with_a_model_of_its_own_is_the_same_in_every_container(tmp_path: Path) -> None:
    """A job on YARN writes its checkpoints from one container, and is resumed from another."""
    for folder in ("here", "there", "else"):
        (tmp_path / folder / "model-code").mkdir(parents=True)
        text = "from eps.ml.models.softmax import Softmax\n\n\nclass Mine(Softmax):\n    pass\n"
        (tmp_path / folder / "model-code" / "mine.py").write_text(text + "# other\n" * (folder == "else"))
    here = dataclasses.replace(
        make_runtime(False, model=f"{tmp_path}/here/model-code/mine.py:Mine"), job_dir=tmp_path / "here"
    )
    assert here.within(tmp_path / "there").spec.model == f"{tmp_path}/there/model-code/mine.py:Mine"
    assert identity(here.within(tmp_path / "there")) == identity(here)
    assert identity(here.within(tmp_path / "else")) != identity(here), "its author has changed it"


def test_a_membership_that_is_said_again_begins_nothing_again(tmp_path: Path) -> None:
    """The checkpoint with which the job began may have been removed by then."""
    runtime = dataclasses.replace(make_runtime(False), job_dir=tmp_path)
    store = open_checkpoints(tmp_path / "checkpoints")
    manifest = checkpoint(runtime, fresh(runtime), 0, store)
    runtime = dataclasses.replace(runtime, start=Start(checkpoint=manifest.name, clock=0, epoch=2))
    van, reports = InProcessVan(), []
    shell = ServerShell(runtime, "server-1", van, reports.append)
    with closing(van.listen(shell.handle)) as listener:
        addresses = {"worker-1": Address("x", 1), "server-1": listener.address}
        table = PartitionTable(("server-1",) * runtime.settings.num_partitions)
        first = Membership(1, 0, ("worker-1",), ("server-1",), table, SplitTable.of(("worker-1",) * SPLITS), addresses)
        shell.on_order(UpdateMembership(0, first))
        store.storage.remove(manifest.name)
        shell.on_order(UpdateMembership(0, first))
        shell.close()
    assert reports == [MembershipAcked("server-1", 1)] * 2


def test_server_that_leaves_goes_back_without_a_checkpoint_that_is_not_kept_any_more(tmp_path: Path) -> None:
    """Found by simulation: a server without partitions learned late of a rollback, and failed the job."""
    runtime = dataclasses.replace(make_runtime(False), job_dir=tmp_path)
    van, reports = InProcessVan(), []
    shell = ServerShell(runtime, "server-1", van, reports.append)
    with closing(van.listen(shell.handle)) as listener:
        addresses = {"worker-1": Address("x", 1), "server-1": listener.address, "server-2": Address("y", 1)}
        workers, splits = ("worker-1",), SplitTable.of(("worker-1",) * SPLITS)
        for version, server in ((1, "server-1"), (2, "server-2")):
            table = PartitionTable((server,) * runtime.settings.num_partitions)
            told = Membership(version, 0, workers, (server,), table, splits, addresses)
            if version == 2:
                told = dataclasses.replace(told, incarnation=1, goes_back=True, checkpoint="0001-00000008")
            shell.on_order(UpdateMembership(0, told))
        shell.close()
    assert reports == [MembershipAcked("server-1", 1), MembershipAcked("server-1", 2)]
