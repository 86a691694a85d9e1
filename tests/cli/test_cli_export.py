"""Exported models: what anyone can recompute, and predictions from them."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eps.data.cut import prepare
from eps.errors import ConfigError, DataError
from eps.job.launch import data_settings, prepare_job
from eps.job.predict import Prediction, TrainedModel, load, predict_file, values_text
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.spec.model_file import ExportedModel, model_sha256, read_model, write_model
from eps.spec.runtime import DataShape, Runtime
from eps.storage.jobdir import JobDir

ROWS = "".join(f"{-1 if i % 2 else 1} 1:{i % 5 + 1} 3:{'-2' if i % 2 else '2'}\n" for i in range(24))


def runtime_of(folder: Path, rows: str = ROWS, **settings: Any) -> Runtime:
    data = folder / "train.svm"
    data.write_text(rows)
    spec = JobSpec().with_settings(
        **{"data": str(data), "splits": 4, "workers": 2, "servers": 1, "partitions": 2, **settings}
    )
    dataset = prepare(data_settings(spec), folder / "dataset")
    shape = DataShape(
        dataset.num_features, len(dataset.classes) or 1, dataset.split_rows, dataset.is_sparse, 0,
        dataset.split_checksums,
    )  # fmt: skip
    return Runtime("job", spec, shape, dataset.directory, folder)


def written(folder: Path, tensors: Mapping[str, np.ndarray], **settings: Any) -> tuple[Path, str]:
    path = folder / "model.npz"
    return path, write_model(path, runtime_of(folder, **settings), tensors)


def predict(model: Path | ExportedModel, data: str, code: str = "") -> Prediction:
    trained = TrainedModel(model) if isinstance(model, ExportedModel) else load(model, code=code)
    return predict_file(trained, data)


WEIGHTS = {"weights": np.array([0.0, 0.0, 1.5], np.float32), "intercept": np.array([0.25], np.float32)}


def test_hash_can_be_recomputed_from_the_file_alone(tmp_path: Path) -> None:
    path, digest = written(tmp_path, WEIGHTS)
    with np.load(path, allow_pickle=False) as arrays:
        meta = json.loads(bytes(arrays["__meta__"]))
        by_hand = hashlib.sha256()
        for name, shape in meta["tensors"]:
            assert list(arrays[name].shape) == shape
            by_hand.update(arrays[name].astype("<f4").tobytes(order="C"))
    assert by_hand.hexdigest() == digest == read_model(path).sha256


def test_hash_of_a_diverged_model_does_not_depend_on_the_bits_of_its_nans(tmp_path: Path) -> None:
    digests = set()
    for number, bits in enumerate((0x7FC00000, 0xFFC00000, 0x7FC01234)):
        weights = np.array([0.0, np.inf, 1.5], np.float32)
        weights.view(np.uint32)[0] = bits
        folder = tmp_path / str(number)
        folder.mkdir()
        path, digest = written(folder, {"weights": weights, "intercept": np.array([-np.inf], np.float32)})
        digests.add(digest)
        assert weights.view(np.uint32)[0] == bits
        found = read_model(path).tensors
        assert np.isnan(found["weights"][0]) and found["weights"][1:].tolist() == [np.inf, 1.5]
        assert found["intercept"].tolist() == [-np.inf]
    assert len(digests) == 1


def test_hash_counts_rows_first_whatever_the_layout_in_memory() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert model_sha256([np.asfortranarray(array)]) == hashlib.sha256(array.tobytes()).hexdigest()
    assert model_sha256([array.astype(">f4")]) == model_sha256([array])


def test_export_is_read_back_as_it_was(tmp_path: Path) -> None:
    path, _ = written(tmp_path, WEIGHTS, normalize="standard")
    model = read_model(path)
    assert (model.name, model.classes, model.num_features, model.num_outputs) == ("logistic", (-1, 1), 3, 2)
    assert list(model.tensors) == ["weights", "intercept"]
    np.testing.assert_array_equal(model.tensors["weights"], WEIGHTS["weights"])
    assert model.normalizer.kind == "standard" and model.normalizer.mean is not None
    assert "data" not in model.reading and str(tmp_path) not in json.dumps(dict(model.reading))


def test_same_model_gives_the_same_file(tmp_path: Path) -> None:
    path, _ = written(tmp_path, WEIGHTS)
    first = path.read_bytes()
    written(tmp_path, WEIGHTS)
    assert path.read_bytes() == first


MODEL_FILE = """
import numpy as np
from eps.ml.layout import TensorSpec
from eps.ml.models import Model

class Odd(Model):
    task = "binary"
    options = {"twice": 1}
    def tensors(self):
        return (TensorSpec("file", (self.num_features,)), TensorSpec("allow_pickle", (1,)))
    def decision(self, params, X):
        return X @ params["file"] + params["allow_pickle"]
    def loss_and_gradient(self, params, X, y):
        raise NotImplementedError
"""


def test_tensors_may_have_any_name_and_a_users_class_predicts(tmp_path: Path) -> None:
    code = tmp_path / "odd.py"
    code.write_text(MODEL_FILE)
    tensors = {"file": WEIGHTS["weights"], "allow_pickle": WEIGHTS["intercept"]}
    path, _ = written(tmp_path, tensors, model=f"{code}:Odd", model_options='{"twice": 2}')
    assert dict(read_model(path).options) == {"twice": 2}
    assert predict(path, str(tmp_path / "train.svm")).metrics["accuracy"] == 1.0
    moved = tmp_path / "moved.py"
    code.rename(moved)
    with pytest.raises(ConfigError, match="does not exist"):
        predict(path, str(tmp_path / "train.svm"))
    assert predict(path, str(tmp_path / "train.svm"), code=f"{moved}:Odd").metrics["accuracy"] == 1.0


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_a_factorization_machine_predicts_in_the_units_of_the_labels(tmp_path: Path, scale: float) -> None:
    rows = "".join(f"{100 + 2 * (i % 2)} 1:1 {2 + i % 2}:1\n" for i in range(24))
    tensors = {"factors": np.zeros((3, 2), np.float32), "biases": np.array([0, -1, 1], np.float32) / scale}
    path, _ = written(tmp_path, tensors, rows=rows, model="mf", rank=2, format="libsvm", target_scale=scale)
    found = predict(path, str(tmp_path / "train.svm"))
    assert found.values == pytest.approx([100, 102] * 12) and found.metrics["rmse"] == pytest.approx(0, abs=1e-5)
    assert load(path).predict(np.eye(3, dtype=np.float32)) == pytest.approx([101, 100, 102])


def test_prediction_gives_classes_as_the_data_names_them(tmp_path: Path) -> None:
    path, _ = written(tmp_path, WEIGHTS)
    new = tmp_path / "new.svm"
    new.write_text("1 3:2\n-1 3:-2\n-1 1:5\n")
    found = predict(path, str(new))
    assert values_text(found.values) == "1\n-1\n1\n"
    np.testing.assert_allclose(found.scores, [3.25, -2.75, 0.25])
    assert found.metrics["accuracy"] == pytest.approx(2 / 3)


def test_rows_are_normalised_as_those_trained_on(tmp_path: Path) -> None:
    path, _ = written(tmp_path, WEIGHTS, normalize="l2")
    new = tmp_path / "new.svm"
    new.write_text("1 1:3 3:4\n-1 3:-1\n")
    np.testing.assert_allclose(predict(path, str(new)).scores, [0.8 * 1.5 + 0.25, -1.5 + 0.25], rtol=1e-6)


def test_metrics_of_a_regression_are_in_the_units_of_its_training(tmp_path: Path) -> None:
    """So they are those of the job's report on the same rows."""
    path, _ = written(tmp_path, WEIGHTS, model="linear", target_scale=4.0)
    found = predict(path, str(tmp_path / "train.svm"))
    labels = np.array([float(line.split()[0]) for line in ROWS.splitlines()])
    assert found.metrics["rmse"] == pytest.approx(np.sqrt(np.mean((found.scores - labels / 4) ** 2)))
    assert found.values == [pytest.approx(4 * score) for score in found.scores.tolist()]


def test_regression_predicts_values(tmp_path: Path) -> None:
    path, _ = written(tmp_path, WEIGHTS, model="linear")
    model = read_model(path)
    assert (model.classes, model.num_outputs) == ((), 1)
    new = tmp_path / "new.svm"
    new.write_text("3.25 3:2\n")
    found = predict(model, str(new))
    assert (values_text(found.values), found.metrics["rmse"]) == ("3.25\n", 0.0)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 broken", gzip.compress(b"1 1:1\n", mtime=0)])
def test_file_that_is_no_export_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match="not a model") as raised:
        read_model(path)
    assert "pickle" not in str(raised.value), "nobody is told how to run what is in it"


def test_archive_without_a_description_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", weights=np.zeros(3, np.float32))
    with pytest.raises(DataError, match="not a model"):
        read_model(tmp_path / "x.npz")


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", __meta__=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="not a model"):
        read_model(tmp_path / "x.npz")


def test_tensor_of_another_shape_than_declared_is_refused(tmp_path: Path) -> None:
    path, _ = written(tmp_path, WEIGHTS)
    with np.load(path) as arrays:
        changed = {**arrays, "weights": np.zeros(4, np.float32)}
    np.savez(path, **changed)
    with pytest.raises(DataError, match="tensor 'weights'"):
        read_model(path)


def test_users_model_is_loaded_from_the_users_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    source, path = tmp_path / "mine.py", tmp_path / "model.npz"
    source.write_text("from eps.ml.models import MODELS\n\nclass Mine(MODELS['logistic']):\n    pass\n")
    (tmp_path / "train.svm").write_text(ROWS)
    prepared = prepare_job(RunRequest.from_values({"data": "train.svm", "model": "mine.py:Mine", "name": "job"}))
    prepared.lock.close()
    container = prepared.directory.path.rename(tmp_path / "container")
    write_model(path, Runtime.of_job(JobDir(container)).within(container), WEIGHTS)
    shutil.rmtree(container)
    monkeypatch.chdir("/")
    assert load(path).name == f"{source}:Mine"
    moved = source.rename(tmp_path / "moved.py")
    with pytest.raises(ConfigError, match=r"mine\.py does not exist: .* --code \(code=\)$"):
        load(path)
    assert load(path, code=f"{moved}:Mine").scores(np.eye(3)).shape == (3,)


def test_class_with_other_tensors_than_the_export_is_refused(tmp_path: Path) -> None:
    path, _ = written(tmp_path, WEIGHTS)
    model: ExportedModel = read_model(path)
    with pytest.raises(DataError, match="has tensors"):
        model.make_model("softmax")
