"""The library's models by name, and users' models by ``path.py:Class``."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from pathlib import Path

from eps.errors import ConfigError
from eps.ml.models.base import TASKS, Model, Task
from eps.ml.models.dnn import Dnn
from eps.ml.models.lda import Lda
from eps.ml.models.linear import Lasso, Linear, LinearModel, Logistic, Ridge, Robust, Svm
from eps.ml.models.mf import Mf
from eps.ml.models.softmax import Softmax
from eps.system.nearest import did_you_mean

__all__ = ["MODELS", "LinearModel", "Model", "Task", "load_model"]

MODELS: dict[str, type[Model]] = {
    "dnn": Dnn,
    "lasso": Lasso,
    "lda": Lda,
    "linear": Linear,
    "logistic": Logistic,
    "mf": Mf,
    "ridge": Ridge,
    "robust": Robust,
    "softmax": Softmax,
    "svm": Svm,
}

#: Methods that a user's class must define; with ``adds``, ``sweep`` instead of ``loss_and_gradient``.
REQUIRED_METHODS = ("tensors", "loss_and_gradient", "decision")


def load_model(name: str) -> type[Model]:
    """Return the model class with this name, or a user's class named ``path.py:Class``.

    Raises
    ------
    ConfigError
        The name is unknown; the file is missing, fails to import, or has no such class; or the class is not a
        :class:`Model` with a task and the methods of :data:`REQUIRED_METHODS`.
    """
    if name in MODELS:
        return MODELS[name]
    path, colon, class_name = name.rpartition(":")
    if not colon or not path.endswith(".py"):
        known, hint = ", ".join(sorted(MODELS)), did_you_mean(name, MODELS)
        raise ConfigError(f"model is {name!r}, but must be one of {known}, or path.py:Class{hint}")
    return _user_class(Path(path), class_name)


def _user_class(path: Path, class_name: str) -> type[Model]:
    if not path.is_file():
        raise ConfigError(f"model file {path} does not exist")
    resolved = str(path.resolve())
    module_name = "eps_user_model_" + hashlib.sha256(resolved.encode()).hexdigest()[:16]
    spec = importlib.util.spec_from_file_location(module_name, resolved)
    if spec is None or spec.loader is None:
        raise ConfigError(f"model file {path} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs, because dataclasses and pickles of the module look it up there.
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise ConfigError(f"model file {path} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        raise ConfigError(f"model file {path} has no class {class_name!r}")
    return _checked(found, f"{path}:{class_name}")


def _checked(found: type, where: str) -> type[Model]:
    if not issubclass(found, Model):
        raise ConfigError(f"{where} must be a subclass of eps.ml.models.Model")
    required = [name.replace("loss_and_gradient", "sweep" if found.adds else name) for name in REQUIRED_METHODS]
    missing = [name for name in required if getattr(found, name) is getattr(Model, name)]
    if missing:
        raise ConfigError(f"{where} must define {', '.join(missing)}")
    if getattr(found, "task", None) not in TASKS:
        raise ConfigError(f"{where}: task is {getattr(found, 'task', None)!r}, but must be one of {', '.join(TASKS)}")
    if found.__init__ is not Model.__init__:
        kinds = [p.kind for p in inspect.signature(found.__init__).parameters.values()]
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            raise ConfigError(
                f"{where}: __init__ must be (self, num_features, num_outputs, *, intercept=True, **options)"
            )
    return found
