from __future__ import annotations

import inspect
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from eps.errors import ConfigError
from eps.ml.models import MODELS, Model, load_model

CASES: list[tuple[str, dict[str, Any]]] = [
    *[(name, {}) for name in sorted(MODELS) if not MODELS[name].adds],
    ("robust", {"huber_delta": 0.3}),
    ("dnn", {"hidden": (6, 5), "activation": "tanh"}),
    ("dnn", {"hidden": (6,), "network_task": "binary"}),
    ("dnn", {"hidden": (6, 5), "network_task": "regression", "activation": "tanh"}),
]
D = 7


def example(name: str, options: dict[str, Any], rows: int = 40, intercept: bool = True, seed: int = 0) -> tuple:
    rng = np.random.default_rng(seed)
    cls = load_model(name)
    outputs = {"binary": 2, "multiclass": 3, "regression": 1}[cls.task_for(options)]
    model = cls(D, outputs, intercept=intercept, **options)
    X = (rng.normal(size=(rows, D)) * (rng.random((rows, D)) < 0.5)).astype(np.float32)
    if outputs == 1:
        y = (rng.normal(size=rows) * 2).astype(np.float32)
    else:
        y = rng.integers(0, outputs, size=rows).astype(np.int32)
    space = model.key_space()
    flat = rng.normal(size=space.num_keys).astype(np.float32) * 0.5
    return model, space.unpack(flat), X, y


#: How far a gradient's number may be from the slope of the loss, relative to the largest: a few roundings of float32.
GRADIENT_TOLERANCE = 1e-6
#: Of a parameter, to each side: far below what bends the loss, far above the rounding of float64.
STEP = 1e-6


def check_gradient(model: Model, params: dict[str, Any], X: np.ndarray, y: np.ndarray) -> None:
    """Hold each number of the gradient against the slope of the loss there, which is computed in float64."""
    space = model.key_space()
    loss, gradient = model.loss_and_gradient(params, X, y)
    assert isinstance(loss, float) and all(array.dtype == np.float32 for array in gradient.values())
    flat, exact = space.pack(params).astype(np.float64), X.astype(np.float64)
    starts, shapes = space.offsets[1:-1], {tensor.name: tensor.shape for tensor in space.tensors}

    def loss_at(values: np.ndarray) -> float:
        parts = zip(shapes.items(), np.split(values, starts), strict=True)
        return model.loss({name: part.reshape(shape) for (name, shape), part in parts}, exact, y)

    slopes = [(loss_at(flat + step) - loss_at(flat - step)) / (2 * STEP) for step in STEP * np.eye(flat.size)]
    found = space.pack(gradient).astype(np.float64)
    np.testing.assert_allclose(found, slopes, rtol=0, atol=GRADIENT_TOLERANCE * np.abs(found).max())
    assert loss == pytest.approx(loss_at(flat), rel=1e-6)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_gradient_agrees_with_differences_of_the_loss(name: str, options: dict[str, Any], intercept: bool) -> None:
    for seed in range(3):
        model, params, X, y = example(name, options, intercept=intercept, seed=seed)
        check_gradient(model, params, X, y)
        # Logistic takes a logarithm for many rows where it has the gradient to compute as well.
        rounding = 1e-14 if name == "logistic" else 0
        assert model.loss(params, X, y) == pytest.approx(model.loss_and_gradient(params, X, y)[0], rel=rounding, abs=0)


#: A case, a place in the source of its class, and what stands there instead in a class that is wrong by 1 %.
MUTANTS: list[tuple[str, dict[str, Any], str, str]] = [
    ("svm", {}, "np.nan, -sign)", "np.nan, -1.01 * sign)"),
    ("logistic", {}, "sign *= share", "sign *= 1.01 * share"),
    ("logistic", {}, "share /= grown", "share /= 1.01 * grown"),
    *[(name, {}, "residuals, residuals", "residuals, 1.01 * residuals") for name in ("linear", "lasso", "ridge")],
    ("robust", {}, "0.5 * slopes), slopes", "0.5 * slopes), 1.01 * slopes"),
    ("linear", {}, "slopes.sum(axis=0)", "1.01 * slopes.sum(axis=0)"),
    ("softmax", {}, "powers[rows, y] -= 1.0", "powers[rows, y] -= 1.01"),
    ("dnn", {}, "delta *= activated > 0", "delta *= 1.01 * (activated > 0)"),
    ("dnn", {}, "delta.sum(axis=0,", "(1.01 * delta).sum(axis=0,"),
    ("dnn", {"hidden": (6, 5)}, "delta = delta @ params", "delta = 1.01 * delta @ params"),
    ("dnn", {"activation": "tanh"}, "1 - activated * activated", "1 - 1.01 * activated * activated"),
    ("dnn", {"network_task": "binary"}, "losses, slopes[:, np.newaxis]", "losses, 1.01 * slopes[:, np.newaxis]"),
    ("mf", {}, "sums *= slopes[part, np.newaxis]", "sums *= np.float32(1.01) * slopes[part, np.newaxis]"),
    ("mf", {}, "(_squared(X).T @ slopes)", "1.01 * (_squared(X).T @ slopes)"),
    ("mf", {}, "+= X.T @ slopes", "+= 1.01 * (X.T @ slopes)"),
]


@pytest.mark.parametrize(("name", "options", "right", "wrong"), MUTANTS)
def test_gradient_that_is_wrong_by_one_percent_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any], right: str, wrong: str
) -> None:
    cls = load_model(name)
    source = inspect.getsource(sys.modules[cls.__module__])
    assert source.count(right) == 1, "the place that is to be wrong is not in the source any more"
    mutated: dict[str, Any] = {"__name__": cls.__module__}
    exec(compile(source.replace(right, wrong), f"{name} with {wrong}", "exec"), mutated)
    monkeypatch.setitem(MODELS, name, mutated[cls.__name__])
    with pytest.raises(AssertionError):
        check_gradient(*example(name, options))


@pytest.mark.parametrize("tensor", ["weights_1", "bias_1", "weights_2", "bias_2", "weights_3", "bias_3"])
def test_one_number_of_a_gradient_that_is_wrong_by_one_percent_is_found(
    monkeypatch: pytest.MonkeyPatch, tensor: str
) -> None:
    model, *arguments = example("dnn", {"hidden": (6, 5), "activation": "tanh"})
    right = model.loss_and_gradient

    def wrong(*args: Any) -> tuple[float, dict[str, np.ndarray]]:
        loss, gradient = right(*args)
        values = gradient[tensor].reshape(-1)
        # Of those that are not about zero, the smallest.
        values[min(np.flatnonzero(np.abs(values) > 1e-2), key=lambda i: abs(values[i]))] *= np.float32(1.01)
        return loss, gradient

    check_gradient(model, *arguments)
    monkeypatch.setattr(model, "loss_and_gradient", wrong)
    with pytest.raises(AssertionError):
        check_gradient(model, *arguments)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_sparse_and_column_restricted_data_give_the_gradient_of_dense_data(name: str, options: dict[str, Any]) -> None:
    model, params, X, y = example(name, options)
    X[:, [1, 4]] = 0
    space, features = model.key_space(), np.array([0, 2, 3, 5, 6])
    keys = space.touched_keys(features)
    loss, gradient = model.loss_and_gradient(params, X, y)
    whole = sparse.csr_matrix(X)
    sparse_loss, sparse_gradient = model.loss_and_gradient(params, whole, y)
    local = space.unpack_local(space.pack(params)[keys], len(features))
    local_loss, local_gradient = model.loss_and_gradient(local, sparse.csr_matrix(X[:, features]), y)
    assert sparse_loss == pytest.approx(loss, rel=1e-5) and local_loss == sparse_loss
    assert np.allclose(space.pack(sparse_gradient), space.pack(gradient), rtol=1e-4, atol=1e-4)
    assert space.pack_local(local_gradient, 5).tobytes() == space.pack(sparse_gradient)[keys].tobytes()


@pytest.mark.parametrize("make", [np.array, sparse.csr_matrix], ids=["dense", "csr"])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_bits_do_not_depend_on_where_the_arrays_lie_in_memory(name: str, options: dict[str, Any], make: Any) -> None:
    model, params, X, y = example(name, options, rows=333)
    loss, gradient = model.loss_and_gradient(params, make(X), y)
    expected = model.key_space().pack(gradient).tobytes()
    for shift in (1, 3, 5, 7):
        # float32 arrays at odd multiples of 4 bytes, as views into a received message can be.
        moved = np.empty(X.size + shift, dtype=np.float32)[shift:].reshape(X.shape)
        moved[...] = X
        space = model.key_space()
        flat = np.empty(space.num_keys + shift, dtype=np.float32)[shift:]
        flat[...] = space.pack(params)
        again, gradient = model.loss_and_gradient(space.unpack(flat), make(moved) if make is not np.array else moved, y)
        assert again == loss and space.pack(gradient).tobytes() == expected


@pytest.mark.parametrize("make", [np.array, sparse.csr_matrix], ids=["dense", "csr"])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_no_rows_have_no_loss_and_no_gradient(name: str, options: dict[str, Any], make: Any) -> None:
    model, params, X, y = example(name, options)
    loss, gradient = model.loss_and_gradient(params, make(X[:0]), y[:0])
    assert loss == 0.0 and not model.key_space().pack(gradient).any()
    assert model.predict(params, make(X[:0])).shape == (0,)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_huge_scores_overflow_nowhere_and_diverged_ones_show_in_the_gradient(
    name: str, options: dict[str, Any]
) -> None:
    model, params, X, y = example(name, options)
    space = model.key_space()
    loss, gradient = model.loss_and_gradient(space.unpack(space.pack(params) * 1e4), X, y)
    assert np.isfinite(loss) and np.isfinite(space.pack(gradient)).all()
    _, gradient = model.loss_and_gradient(space.unpack(np.full(space.num_keys, np.nan, dtype=np.float32)), X, y)
    assert np.isnan(space.pack(gradient)).any()


@pytest.mark.parametrize(("name", "options"), CASES)
def test_predictions_follow_from_the_scores(name: str, options: dict[str, Any]) -> None:
    model, params, X, _ = example(name, options)
    scores, predictions = model.decision(params, X), model.predict(params, X)
    task = model.task_for(model.chosen)
    if task == "multiclass":
        assert scores.shape == (40, 3) and np.array_equal(predictions, scores.argmax(axis=1))
    else:
        assert scores.shape == (40,)
        assert np.array_equal(predictions, scores > 0 if task == "binary" else scores)
    assert scores.dtype == np.float32


def test_losses_have_their_textbook_values() -> None:
    def loss(name: str, score: float, label: float, **options: float) -> float:
        model = load_model(name)(1, 1 if load_model(name).task == "regression" else 2, intercept=False, **options)
        return model.loss(
            {"weights": np.array([score], dtype=np.float32)},
            np.ones((1, 1), dtype=np.float32),
            np.array([label]).astype(int),
        )

    assert loss("svm", 0.25, 1) == 0.75 and loss("svm", 0.25, 0) == 1.25 and loss("svm", 3, 1) == 0
    assert loss("logistic", 0, 1) == pytest.approx(np.log(2)) and loss("logistic", 5e4, 0) == 5e4
    assert loss("linear", 3, 1) == 2
    assert loss("robust", 1.5, 1) == 0.125 and loss("robust", 5, 1) == 3.5
    assert loss("robust", 5, 1, huber_delta=2.0) == 2 * (4 - 1)


def test_networks_have_the_declared_layers() -> None:
    model = load_model("dnn")(10, 4, hidden="32,16")
    assert [(t.name, t.shape, t.penalised, t.rows_are_features) for t in model.tensors()] == [
        ("weights_1", (10, 32), True, True),
        ("bias_1", (32,), False, False),
        ("weights_2", (32, 16), True, False),
        ("bias_2", (16,), False, False),
        ("weights_3", (16, 4), True, False),
        ("bias_3", (4,), False, False),
    ]
    assert [round(t.init_scale**2 * t.shape[0], 6) for t in model.tensors()[::2]] == [2, 2, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("svm", 0, 2, {}), "num_features is 0"),
        (("svm", 3, 3, {}), "Svm needs exactly 2 classes, but num_outputs is 3"),
        (("softmax", 3, 1, {}), "Softmax needs at least 2 classes"),
        (("ridge", 3, 2, {}), "Ridge needs 1 output"),
        (("svm", 3, 2, {"hidden": 3}), "Svm has no option hidden; its options are: none"),
        (("robust", 3, 1, {"huber_delta": "wide"}), "huber_delta is 'wide', but must be like its default 1.0"),
        (("robust", 3, 1, {"huber_delta": 0}), "huber_delta is 0.0, but must be finite and > 0"),
        (("dnn", 3, 2, {"hidden": "8,x"}), r"hidden is '8,x', but must be like its default \(128,\)"),
        (("dnn", 3, 2, {"hidden": ()}), "hidden is"),
        (("dnn", 3, 2, {"activation": "step"}), "activation is 'step'"),
        (("dnn", 3, 2, {"network_task": "ranking"}), "network_task is 'ranking'"),
    ],
)
def test_sizes_and_options_that_do_not_fit_are_refused(arguments: tuple, message: str) -> None:
    name, num_features, num_outputs, options = arguments
    with pytest.raises(ConfigError, match=message):
        load_model(name)(num_features, num_outputs, **options)


def test_options_are_taken_as_values_or_as_text() -> None:
    cls = load_model("dnn")
    assert cls.check_options({"hidden": [64, 32]})["hidden"] == (64, 32)
    assert cls.check_options({"hidden": "64"})["hidden"] == (64,) == cls.check_options({"hidden": 64})["hidden"]
    assert load_model("robust").check_options({"huber_delta": "2"}) == {"huber_delta": 2.0}


OWN = """
    import numpy as np
    from eps.ml.layout import TensorSpec
    from eps.ml.models import Model

    class Poisson(Model):
        task = "regression"
        def tensors(self):
            return (TensorSpec("weights", (self.num_features,), rows_are_features=True),)
        def decision(self, params, X):
            return X @ params["weights"]
        def loss_and_gradient(self, params, X, y):
            z = self.decision(params, X).astype(np.float64)
            return float((np.exp(z) - y * z).sum()), {"weights": X.T @ (np.exp(z) - y).astype(np.float32)}

    class NoGradient(Model):
        task = "regression"
        tensors = Poisson.tensors
        decision = Poisson.decision

    class NoTask(Poisson):
        task = "ranking"

    class NoOptions(Poisson):
        def __init__(self, num_features):
            pass

    class Other:
        pass

    not_a_class = 3
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(textwrap.dedent(OWN))
    return path


def test_a_users_own_class_works_as_those_of_the_library(own: Path) -> None:
    cls = load_model(f"{own}:Poisson")
    assert issubclass(cls, Model)
    model = cls(2, 1)
    params = {"weights": np.array([0.5, -1], dtype=np.float32)}
    X, y = np.eye(2, dtype=np.float32), np.array([1, 2], dtype=np.float32)
    assert model.loss(params, X, y) == model.loss_and_gradient(params, X, y)[0]
    assert np.array_equal(model.predict(params, X), params["weights"])


def test_the_example_of_the_documentation_works(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "eps" / "ml" / "models" / "README.md"
    (tmp_path / "example.py").write_text(page.read_text().split("```python\n")[1].split("```")[0])
    model = load_model(f"{tmp_path}/example.py:Poisson")(3, 1, largest_score="10")
    space = model.key_space()
    params = space.unpack(np.full(space.num_keys, 0.1, dtype=np.float32))
    X, y = np.eye(3, dtype=np.float32), np.arange(3, dtype=np.float32)
    loss, gradient = model.loss_and_gradient(params, X, y)
    assert loss == pytest.approx(3 * np.exp(0.2) - 0.6, rel=1e-5)
    assert space.pack(gradient)[:3] == pytest.approx(np.exp(0.2) - y, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoGradient", "must define loss_and_gradient"),
        ("NoTask", "task is 'ranking', but must be one of binary, multiclass, regression"),
        ("NoOptions", r"__init__ must be \(self, num_features, num_outputs"),
        ("Other", "must be a subclass of eps.ml.models.Model"),
        ("not_a_class", "has no class 'not_a_class'"),
        ("Missing", "has no class 'Missing'"),
    ],
)
def test_a_class_that_is_not_a_model_is_refused(own: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_model(f"{own}:{name}")


def test_unknown_names_and_files_that_cannot_be_imported_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'svn', .*path\.py:Class"):
        load_model("svn")
    with pytest.raises(ConfigError, match="does not exist"):
        load_model(f"{tmp_path}/none.py:A")
    (tmp_path / "broken.py").write_text("def (")
    with pytest.raises(ConfigError, match="SyntaxError"):
        load_model(f"{tmp_path}/broken.py:A")
