"""The contract of stores on a real HDFS."""

from __future__ import annotations

import secrets

import pytest

from eps.storage.api import Storage
from eps.storage.locations import open_storage
from tests.contract import test_storage_contract as contract
from tests.yarn.hadoop import PATIENCE_S, Hadoop

unsynced = contract.unsynced


@pytest.fixture
def storage(hadoop: Hadoop, monkeypatch: pytest.MonkeyPatch) -> Storage:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hadoop.conf_dir))
    return open_storage(f"hdfs:///contract/{secrets.token_hex(4)}", patience_s=PATIENCE_S)


# The tests of the contract, with this module's fixture.
globals().update({name: test for name, test in vars(contract).items() if name.startswith("test_")})
