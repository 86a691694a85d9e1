"""The interface of models: the shapes of the parameters and the gradient of a batch.

A model knows nothing of partitions, servers, workers, penalties or update rules.  ``README.md`` beside this file
explains how to write one.  Instances are small, immutable in use, and have the same settings in every process of a job.

Design section 7: a model is a small class, and a user's own works like the library's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from eps.errors import ConfigError
from eps.ml.arrays import Float32Array, Matrix, Targets
from eps.ml.layout import KeySpace, TensorSpec

Task = Literal["binary", "multiclass", "regression", "topics"]
TASKS: tuple[Task, ...] = ("binary", "multiclass", "regression", "topics")
PenaltyRule = Literal["optional", "required", "refused"]
Params = Mapping[str, Float32Array]


class Model:
    """Base class of all models.

    A subclass must define ``task``, :meth:`tensors`, :meth:`loss_and_gradient` and :meth:`decision`.  One that
    :attr:`adds` defines :meth:`sweep` and :meth:`loss` instead of :meth:`loss_and_gradient`.

    Parameters
    ----------
    num_features : int
        d, columns of X.
    num_outputs : int
        k: 2 for binary, the number of classes for multiclass, 1 for regression, the number of tokens for topics.
    intercept : bool
        Whether the model has intercepts or biases.
    **options
        Values for some of :attr:`options`, as Python values or as command-line text.

    Raises
    ------
    ConfigError
        An unknown option, a value of the wrong type, or sizes that do not fit the task.
    """

    #: The task that is learned; decides how labels are encoded and which metrics apply.
    task: ClassVar[Task]
    #: The format of the data if the user names none; "auto" detects it.
    data_format: ClassVar[str] = "auto"
    #: Whether the mean of the training labels is subtracted from all labels of a regression.
    centres_labels: ClassVar[bool] = False
    #: Whether it has changes of its parameters instead of a gradient; servers add them without an update rule.
    adds: ClassVar[bool] = False
    #: Number of parts of the rows of a split, if the model :attr:`adds`: clock c uses part ``c % parts``.
    parts: int = 1
    #: Names of further options -> defaults, whose type is the type of the option.
    options: ClassVar[Mapping[str, Any]] = {}
    #: Whether the model must or must not have an L1 (L2) penalty.
    l1_penalty: ClassVar[PenaltyRule] = "optional"
    l2_penalty: ClassVar[PenaltyRule] = "optional"
    #: Whether its scores are log-odds, which give the probabilities of classes.
    gives_probabilities: ClassVar[bool] = False
    #: How many times as long an iteration takes without Numba, with the same bits.
    slower_without_numba: ClassVar[int] = 1

    def __init__(self, num_features: int, num_outputs: int, *, intercept: bool = True, **options: Any) -> None:
        self.num_features = num_features
        self.num_outputs = num_outputs
        self.intercept = intercept
        self.chosen = self.check_options(options)
        task = self.task_for(options)
        if num_features < 1:
            raise ConfigError(f"num_features is {num_features}, but must be at least 1")
        wanted = {
            "binary": ("exactly 2 classes", num_outputs == 2),
            "multiclass": ("at least 2 classes", num_outputs >= 2),
            "regression": ("1 output", num_outputs == 1),
            "topics": ("at least 1 token", num_outputs >= 1),
        }
        rule, fits = wanted[task]
        if not fits:
            raise ConfigError(f"{type(self).__name__} needs {rule}, but num_outputs is {num_outputs}")

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return all options with their values; text is converted to the type of the default.

        Raises
        ------
        ConfigError
            An unknown option, or a value of the wrong type.
        """
        unknown = sorted(set(options) - set(cls.options))
        if unknown:
            known = ", ".join(sorted(cls.options)) or "none"
            raise ConfigError(f"{cls.__name__} has no option {', '.join(unknown)}; its options are: {known}")
        return {
            name: _converted(f"{cls.__name__}: {name}", default, options.get(name, default))
            for name, default in cls.options.items()
        }

    @classmethod
    def task_for(cls, options: Mapping[str, Any]) -> Task:
        """Return the task for these options, before the data is known."""
        return cls.task

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Return the parameters in the order of their keys."""
        raise NotImplementedError

    def key_space(self) -> KeySpace:
        """Return the key space of :meth:`tensors`."""
        return KeySpace(self.tensors())

    def loss_and_gradient(self, params: Params, X: Matrix, y: Targets) -> tuple[float, dict[str, Float32Array]]:
        """Return the loss and its gradient, summed over the rows of ``X``, without penalties.

        ``X`` may be restricted to some features; tensors with ``rows_are_features`` are then restricted the same way.
        Must be deterministic to the bit: the same arguments give the same bits, independently of earlier calls.

        Parameters
        ----------
        params : mapping of str to ndarray, float32
            By tensor name; read-only.
        X : ndarray or CSR matrix, shape (n, d_local), float32
        y : ndarray, shape (n,)
            As :meth:`target` returns them.

        Returns
        -------
        loss : float
        gradient : dict of str to ndarray, float32
            Same names and shapes as ``params``.
        """
        raise NotImplementedError

    def sweep(self, params: Params, X: Matrix, stream: np.random.Generator) -> tuple[float, dict[str, Float32Array]]:
        """Return the loss and the changes of the parameters, if the model :attr:`adds`.

        Parameters and result are otherwise those of :meth:`loss_and_gradient`.  ``stream`` belongs to the split and the
        clock.
        """
        raise NotImplementedError

    def decision(self, params: Params, X: Matrix) -> Float32Array:
        """Return scores: (n,) for binary (positive means class 1) and regression, (n, k) for multiclass."""
        raise NotImplementedError

    def loss_of_scores(self, scores: Float32Array, y: Targets) -> float | None:
        """Return the summed loss given the scores of :meth:`decision`, or None if scores do not determine it."""
        return None

    def loss(self, params: Params, X: Matrix, y: Targets) -> float:
        """Return the loss summed over the rows of ``X``."""
        loss = self.loss_of_scores(self.decision(params, X), y)
        return self.loss_and_gradient(params, X, y)[0] if loss is None else loss

    def predict(self, params: Params, X: Matrix) -> Targets:
        """Return predicted targets, shape (n,): class indices (int32), or float32 for regression."""
        return predicted(self.task_for(self.chosen), self.decision(params, X))


def predicted(task: Task, scores: Float32Array) -> Targets:
    """Return the targets that scores predict: class 1 above 0, the class with the largest score, or the score."""
    if task == "binary":
        return np.asarray(scores > 0, dtype=np.int32)
    if task == "multiclass":
        return np.asarray(np.argmax(scores, axis=1), dtype=np.int32)
    return np.asarray(scores, dtype=np.float32)


def probabilities(scores: Float32Array) -> Float32Array:
    """Return the probability of each class, shape (n, k), for log-odds (n, k), or (n,) of the second of two classes."""
    log_odds = np.column_stack([np.zeros_like(scores), scores]) if scores.ndim == 1 else scores
    # Shifted so that the largest is 0, which avoids overflow.
    found = np.exp(log_odds - log_odds.max(axis=1, keepdims=True))
    return np.asarray(found / found.sum(axis=1, keepdims=True), dtype=np.float32)


def _converted(name: str, default: Any, value: Any) -> Any:
    """Return an option's value, converted to the type of its default."""
    try:
        if isinstance(default, bool):
            if isinstance(value, str) and value.lower() in ("true", "false"):
                return value.lower() == "true"
            if isinstance(value, bool):
                return value
        elif isinstance(default, int):
            if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
                return int(value)
        elif isinstance(default, float):
            if isinstance(value, str | int | float) and not isinstance(value, bool):
                return float(value)
        elif isinstance(default, tuple):
            items = [part for part in value.split(",") if part.strip()] if isinstance(value, str) else value
            items = [items] if isinstance(items, int) else items
            return tuple(_converted(name, default[0], item) for item in items)
        elif isinstance(value, type(default)):
            return value
    except (TypeError, ValueError):
        pass
    raise ConfigError(f"{name} is {value!r}, but must be like its default {default!r}")
