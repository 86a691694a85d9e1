"""Small data sets that come with scikit-learn, by name."""

from __future__ import annotations

import importlib.util

import numpy as np

from eps.data.raw import RawData, to_matrix
from eps.errors import ConfigError

#: ``--data`` of a data set of scikit-learn starts with this.
SKLEARN_PREFIX = "sklearn:"
SKLEARN_NAMES = ("breast_cancer", "diabetes", "digits", "iris", "wine")


def is_builtin(data: str) -> bool:
    """Tell whether ``data`` names a data set instead of a file."""
    return data.startswith(SKLEARN_PREFIX)


def check_builtin(data: str) -> str:
    """Return the bare name.

    Raises
    ------
    ConfigError
        Unknown name, or scikit-learn is not installed.
    """
    name = data.removeprefix(SKLEARN_PREFIX)
    if name not in SKLEARN_NAMES:
        raise ConfigError(f"data is {data!r}, but of scikit-learn's must be one of {', '.join(SKLEARN_NAMES)}")
    if importlib.util.find_spec("sklearn") is None:
        raise ConfigError(f"data is {data!r}, which needs scikit-learn: pip install '.[data]' in EPS's folder")
    return name


def builtin_version(data: str) -> str:
    """Return what the content of a data set depends on besides its name."""
    check_builtin(data)
    import sklearn

    return f"scikit-learn {sklearn.__version__}"


def load_builtin(data: str) -> RawData:
    """Load ``sklearn:NAME``.

    Raises
    ------
    ConfigError
        Unknown name, or scikit-learn is not installed.
    """
    name = check_builtin(data)
    from sklearn import datasets

    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return RawData(X=to_matrix(X, data), y=np.asarray(y, dtype=np.float64), format="sklearn")
