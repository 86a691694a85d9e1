"""Defaults, job file and flags become one value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eps.cli.commands.run import request_of
from eps.cli.parser import build_parser
from eps.core.types import MOST_MEMBERS
from eps.errors import ConfigError
from eps.spec.file import RunRequest, located, named, read_job_file
from eps.spec.job_spec import SETTINGS, TABLES, JobSpec
from eps.spec.runtime import make_model
from eps.spec.setting import settings_of
from eps.spec.tables import Yarn


def request(*words: str) -> RunRequest:
    return request_of(build_parser().parse_args(["run", *words]))


def job_file(folder: Path, text: str) -> str:
    path = folder / "job.toml"
    path.write_text(text)
    return str(path)


def test_no_flags_give_the_defaults() -> None:
    assert request() == RunRequest(JobSpec())


def test_each_setting_has_a_flag_that_sets_it() -> None:
    values: dict[str, Any] = {
        "model": "svm", "optimizer": "sgd", "normalize": "l2", "on_divergence": "continue", "consistency": "ssp:3",
        "batch_size": "32", "at": ("5:add-workers=2",), "fold": 1, "folds": 4, "hidden": "7,8",
        "push": "dense", "van": "tcp", "wire": "float32", "checkpoint_every": "30s",
        "member_timeout_s": 4.5, "master_timeout_s": 70.5, "followers": 0, "on": "yarn", "memory_mb": "64,server=128",
        "vcores": "2", "execution": "worker=opportunistic",
        "resource": ("worker=yarn.io/gpu=1",), "acl": ("view=ann,bob",), "priority": 7, "stage_rule": "2",
    }  # fmt: skip
    for field in SETTINGS.values():
        value = values.get(field.name)
        if isinstance(field.default, bool):
            value = not field.default
        if value is None:
            value = {int: 11, float: 0.5, str: "x"}[type(field.default)]
        if field.name in ("test", "fold", "transient", "stage_rule", "max_lag_s"):
            # Not without others.
            continue
        flag = "--" + field.name.replace("_", "-")
        words = [flag, value[0] if isinstance(value, tuple) else str(value)]
        if isinstance(value, bool):
            words = [flag] if value else ["--no-" + flag[2:]]
        assert request(*words).spec.values()[field.name] == value, flag


def test_what_a_container_gets_may_differ_by_role() -> None:
    spec = JobSpec().with_settings(
        memory_mb="1024, server=4096", vcores="2", label="worker=transient", execution="guaranteed"
    )
    assert [spec.containers.memory_of(role) for role in ("worker", "server", "master")] == [1024, 4096, 1024]
    assert [spec.containers.vcores_of(role) for role in ("worker", "master")] == [2, 2]
    assert [spec.yarn.label_of(role) for role in ("worker", "server")] == ["transient", ""]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (
            {"memory_mb": "server=1024"},
            "must have a number from 1 on for a worker: .* without a role .* 1024,server=4096",
        ),
        (
            {"vcores": "worker=64"},
            "vcores is 'worker=64', but must have a number from 1 on for a server: .* as in 1,server=2",
        ),
        ({"vcores": "0"}, "a number from 1 on"),
        ({"memory_mb": "1024,serer=4"}, "must be VALUE or ROLE=VALUE"),
        ({"execution": "worker=now"}, "must name guaranteed or opportunistic"),
        ({"execution": "opportunistic"}, "starts application masters as guaranteed"),
        ({"priority": -2}, "priority is -2, but must be 0 to 2147483647, or -1: the queue's own"),
        ({"lifetime_s": -1.0}, "lifetime_s is -1.0, but must be at least 0"),
        ({"acl": ("read=ann",)}, "acl is 'read=ann', but must be view=WHO or modify=WHO: users joined by commas"),
        ({"acl": ("view=",)}, "acl is 'view=', but must be"),
        ({"acl": ("view=ann bob eve",)}, "acl is 'view=ann bob eve', but must be"),
        ({"acl": ("view=ann", "view=bob")}, "acl says twice who may view the application: 'ann' and 'bob'"),
        ({"resource": ("yarn.io/gpu",)}, "resource is 'yarn.io/gpu', but must be NAME=N or ROLE=NAME=N"),
        ({"resource": ("clerk=yarn.io/gpu=1",)}, "resource is 'clerk=yarn.io/gpu=1', but must be"),
        ({"resource": ("yarn.io/gpu=-1",)}, "resource is 'yarn.io/gpu=-1', but must be"),
        ({"resource": ("worker=memory-mb=64",)}, "but memory-mb is set by memory_mb"),
        ({"on": "yrn"}, "on is 'yrn', but must be one of local, docker, yarn"),
    ],
)
def test_what_no_cluster_can_give_is_refused(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        JobSpec().with_settings(**values)


def test_flags_and_keys_of_seconds_may_leave_the_unit_out() -> None:
    assert request("--member-timeout", "4.5").spec.recovery.member_timeout_s == 4.5
    assert JobSpec.from_dict({"member-timeout": 4.5}) == JobSpec.from_dict({"member_timeout_s": 4.5})


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"max_containers": 5}, "max_containers is 5, but 3 workers and 3 servers need 6"),
        ({"followers": -1}, "must be 0 or 1"),
        ({"followers": 2}, "must be 0 or 1"),
        ({"exchange_timeout": 0}, "exchange_timeout_s is 0, but must be above 0"),
        ({"exchange_timeout": float("inf")}, "must be finite"),
        ({"consistency": "ssp:99999999999999"}, "N at most 1000000000"),
        ({"iterations": 5, "at": ["5:frob=1"]}, "frob"),
        ({"iterations": 5, "at": ["5:add-workers=0"]}, "at least 1 member"),
        ({"iterations": 5, "at": ["5:add-workers=1"]}, "K must be at most 4"),
        ({"at": ["5:add-workers=1000000000"]}, "at least 1 member, and at most"),
        ({"at": ["²:add-workers=1"]}, "K:CHANGE"),
        ({"workers": 10**9, "splits": 10**6}, f"workers is 1000000000, but must be at most {MOST_MEMBERS}"),
        ({"splits": 10**9}, "splits is 1000000000, but must be at most 1000000"),
        ({"seed": 10**30}, "must be at most 9223372036854775807"),
        ({"iterations": 10**30}, "must be at most 2147483647"),
    ],
)
def test_setting_that_cannot_work_is_refused_with_its_rule(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        JobSpec.from_dict({"workers": 3, "servers": 3, **values}).triggers()


@pytest.mark.parametrize("values", [{"member_timeout": 0.9}, {"member_timeout": 5, "master_timeout": 4}])
def test_deadline_that_a_healthy_job_would_miss_is_refused(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must be at least"):
        JobSpec.from_dict(values)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--wire", "float16"), "reproducible to the last bit"),
        (("--van", "carrier-pigeon"), "auto, shm, unix, tcp"),
        (("--van", "grpc"), "auto, shm, unix, tcp"),
        (("--push", "some"), "auto, dense, changes"),
    ],
)
def test_settings_of_the_data_plane_that_cannot_be_are_refused_with_the_rule(
    words: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        request(*words)


def test_float16_is_taken_where_no_bit_is_promised() -> None:
    for words in (("--no-reproducible",), ("--consistency", "asp"), ("--consistency", "ssp:2")):
        assert request("--wire", "float16", *words).spec.network.wire == "float16"


def test_flags_go_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    path = job_file(tmp_path, 'name = "a"\niterations = 7\nlearning-rate = 1\nworkers = 2\n')
    found = request(path, "--iterations", "9", "--name", "b")
    assert (found.name, found.spec.iterations, found.spec.learning_rate, found.spec.workers) == ("b", 9, 1.0, 2)
    assert found.spec.servers == JobSpec().servers
    assert found.given == {"iterations", "learning_rate", "workers"}


def test_repeated_at_flags_are_kept_in_order_and_replace_those_of_the_file(tmp_path: Path) -> None:
    path = job_file(tmp_path, 'at = ["9:add-workers=1"]\n')
    assert request(path).spec.at == ("9:add-workers=1",)
    found = request(path, "--at", "40:add-workers=2", "--at", "20:remove-servers=server-1,server-2")
    assert found.spec.at == ("40:add-workers=2", "20:remove-servers=server-1,server-2")


def test_paths_of_a_file_count_from_its_folder(tmp_path: Path) -> None:
    path = job_file(
        tmp_path,
        'data = ["a.gz", "/b.gz"]\nlabels = "y.npy"\ntest = "t.gz"\ninit = "../m.npz"\nmodel = "my.py:Net"\n'
        'report = "out/r.json"\nexport = "m.npz"\n',
    )
    found = read_job_file(Path(path))
    assert found["data"] == [f"{tmp_path}/a.gz", "/b.gz"]
    assert found["model"] == f"{tmp_path}/my.py:Net"
    assert [found[key] for key in ("labels", "test", "init", "report", "export")] == [
        f"{tmp_path}/{name}" for name in ("y.npy", "t.gz", "../m.npz", "out/r.json", "m.npz")
    ]


def test_paths_in_a_table_count_from_the_files_folder(tmp_path: Path) -> None:
    found = read_job_file(
        Path(job_file(tmp_path, '[yarn]\npython = "env.tar.gz"\n[checkpoints]\ncheckpoint-dir = "/x"'))
    )
    assert found == {"python": f"{tmp_path}/env.tar.gz", "checkpoint_dir": "/x"}
    # As a sweep's file has it below [job].
    assert located("yarn", {"python": "env.tar.gz"}, tmp_path) == {"python": f"{tmp_path}/env.tar.gz"}


@pytest.mark.parametrize("test", ['"0.2"', "0.2", '"last:50"'])
def test_what_is_no_path_stays_as_it_is(tmp_path: Path, test: str) -> None:
    found = request(job_file(tmp_path, f'data = "sklearn:digits"\nmodel = "softmax"\ntest = {test}\n'))
    assert (found.spec.data, found.spec.model, found.spec.test) == ("sklearn:digits", "softmax", test.strip('"'))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("iteratoins = 3", "unknown key 'iteratoins'; did you mean iterations?"),
        ("nmae = 'x'", "did you mean name?"),
        ("[yarn]\nquue = 'x'", "job.toml: [yarn]: unknown key 'quue'; did you mean queue?"),
        ("[yran]\nqueue = 'x'", "job.toml: unknown table [yran]; did you mean yarn?"),
        ("[yarn]\nwire = 'float32'", "job.toml: [yarn]: wire is not of this table, but of [network]"),
        ("[yarn]\nmodel = 'svm'", "job.toml: [yarn]: model is not of this table, but of the top of the file"),
        ("[yarn]\npriority = 'x'", "priority is 'x', but must be 0 to 2147483647, or -1"),
        ("queue = 'a'\n[yarn]\nqueue = 'a'", "queue is given twice"),
        ("[data]\npath = 'x'", "data is {'path': 'x'}, but must be text"),
        ("iterations = '3'", "iterations is '3', but must be a whole number"),
        ("name = 3", "name is 3, but must be text"),
        ("batch-size = 3\nbatch_size = 4", "batch_size is given twice"),
        ("stretch = 0.1\nstretch_s = 0.2", "stretch_s is given twice, in two spellings"),
        ("workers = 20", "20 workers would share 12 splits"),
        ("iterations = ", "job.toml"),
    ],
)
def test_wrong_job_file_is_refused_with_the_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"job\.toml|workers") as caught:
        request(job_file(tmp_path, text))
    assert message in str(caught.value)


def test_a_job_file_takes_the_name_of_every_flag_that_is_a_setting(tmp_path: Path) -> None:
    """The flag of a setting in seconds has no unit, --stretch say, though it is taken with one, too."""
    for field in SETTINGS.values():
        flag = field.name.replace("_", "-")
        for key in (flag, flag.removesuffix("-s")):
            assert named({key: 1}) == {field.name: 1}
            if (group := field.group) in TABLES:
                assert named({group: {key: 1}}) == {field.name: 1}
    path = job_file(tmp_path, "stretch = 0.25\nmember-timeout = 7.0")
    assert read_job_file(Path(path)) == {"stretch_s": 0.25, "member_timeout_s": 7.0}
    assert request("--stretch", "0.5", path).spec.stretch_s == 0.5


def test_a_table_has_a_setting_and_a_record_its_name_alone() -> None:
    spec = JobSpec(workers=2, yarn=Yarn(queue="a"))
    assert spec == JobSpec.from_dict({"queue": "a", "workers": 2}) == JobSpec().with_settings(queue="a", workers=2)
    record = json.loads(spec.to_json())
    assert record.keys() == SETTINGS.keys() and record["queue"] == "a"
    assert JobSpec.from_dict(record) == spec
    tables = [type(getattr(spec, name)) for name in spec.__struct_fields__ if name not in SETTINGS]
    assert sum(len(settings_of(table)) for table in (JobSpec, *tables)) == len(SETTINGS), "a name is in two tables"


def test_values_of_python_are_taken_for_what_they_say() -> None:
    values = {
        "data": Path("a"), "hidden": [7, 8], "columns": ["x", 1], "memory_mb": 512, "batch_size": 32, "test": 0.2,
        "at": "5:workers=+1", "resource": ["fpga=1"], "learning_rate": np.float64(0.5), "l1": 1, "optimizer": "sgd",
    }  # fmt: skip
    found = JobSpec.from_dict(values).values()
    assert {name: found[name] for name in values} == {
        "data": "a", "hidden": "7,8", "columns": "x,1", "memory_mb": "512", "batch_size": "32", "test": "0.2",
        "at": ("5:workers=+1",), "resource": ("fpga=1",), "learning_rate": 0.5, "l1": 1.0, "optimizer": "sgd",
    }  # fmt: skip
    assert type(found["learning_rate"]) is type(found["l1"]) is float


def test_scalars_of_numpy_are_taken_for_those_of_python() -> None:
    values = {
        "seed": np.int64(5), "reliable": np.int32(8), "anew": np.bool_(True), "intercept": np.bool_(False),
        "l1": np.int64(1), "l2": np.float32(0.5), "memory_mb": np.int64(512), "test": np.float32(0.5),
        "hidden": [np.int64(7), np.int64(8)], "model": np.str_("svm"),
    }  # fmt: skip
    plain = {
        "seed": 5, "reliable": 8, "anew": True, "intercept": False, "l1": 1, "l2": 0.5, "memory_mb": 512, "test": 0.5,
        "hidden": [7, 8], "model": "svm",
    }  # fmt: skip
    found = RunRequest.from_values(values)
    assert found == RunRequest.from_values(plain) and found.spec.splits == 32
    assert found.spec.to_json() == RunRequest.from_values(plain).spec.to_json()
    assert JobSpec().with_settings(seed=np.int64(5)) == JobSpec(seed=5)


@pytest.mark.parametrize(
    ("default", "flags", "chosen"),
    [
        ("64", {}, 64),
        ("64", {"hidden": "32"}, 32),
        ("(64, 32)", {}, (64, 32)),
        ("(64, 32)", {"hidden": "16,8"}, (16, 8)),
        ("(64, 32)", {"hidden": "16"}, (16,)),
    ],
)
def test_a_users_own_model_keeps_its_defaults(tmp_path: Path, default: str, flags: dict[str, Any], chosen: Any) -> None:
    code = tmp_path / "own.py"
    options = f'{{"hidden": {default}, "huber_delta": 2.5, "rank": 7}}'
    code.write_text(f"from eps.ml.models.linear import Linear\n\n\nclass Own(Linear):\n    options = {options}\n")
    model = f"{code}:Own"
    assert make_model(JobSpec(model=model, **flags), 3, 1).chosen == {"hidden": chosen, "huber_delta": 2.5, "rank": 7}
    assert make_model(JobSpec(model=model, huber_delta=0.5, rank=2), 3, 1).chosen["huber_delta"] == 0.5


def test_missing_job_file_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        request("nowhere.toml")


def test_a_container_of_a_tier_has_a_size_of_its_own_or_that_of_a_worker_and_a_server() -> None:
    found = request("--memory-mb", "1024,server=4096", "--reliable", "1").spec.containers
    assert (found.memory_of("reliable"), found.vcores_of("transient")) == (5120, 2)
    own = request("--memory-mb", "1024,reliable=2048", "--vcores", "1,reliable=1", "--reliable", "1").spec.containers
    assert (own.memory_of("reliable"), own.memory_of("transient"), own.vcores_of("reliable")) == (2048, 2048, 1)
    with pytest.raises(ConfigError, match=r"memory_mb is .1024,reliable=x., but must have a number .* for a reliable"):
        request("--memory-mb", "1024,reliable=x", "--reliable", "1")
