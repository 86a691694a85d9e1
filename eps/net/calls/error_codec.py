"""Errors as bytes, so that the exact class crosses a process boundary on either plane.  Pure.

A class that the reader does not know is read as the nearest base class in :mod:`eps.errors`.
"""

from __future__ import annotations

import json

from eps import errors
from eps.errors import EpsError, IllegalTransitionError

#: gRPC trailers are limited in size; a longer text loses its middle.
MAX_TEXT_CHARS = 4000
_MAX_STORY_LINES = 20

ERROR_CLASSES: dict[str, type[EpsError]] = {
    name: value
    for name, value in sorted(vars(errors).items())
    if isinstance(value, type) and issubclass(value, EpsError)
}


def error_name(error: EpsError) -> str:
    """Return the name of the nearest class of ``error`` in :mod:`eps.errors`."""
    return next(cls.__name__ for cls in type(error).__mro__ if ERROR_CLASSES.get(cls.__name__) is cls)


def shortened(text: str, max_chars: int = MAX_TEXT_CHARS) -> str:
    """Return ``text``, with its middle left out if it is longer than ``max_chars``."""
    if len(text) <= max_chars:
        return text
    half = (max_chars - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def encode_error(error: EpsError) -> bytes:
    """Return name, message and data attributes of ``error`` as UTF-8 JSON of a bounded size."""
    fields: dict[str, object] = {"name": error_name(error), "message": shortened(str(error))}
    if isinstance(error, IllegalTransitionError):
        fields["story"] = [shortened(line, 200) for line in error.story[-_MAX_STORY_LINES:]]
    return json.dumps(fields).encode()


def decode_error(data: bytes) -> EpsError:
    """Return the error that :func:`encode_error` encoded.

    Raises
    ------
    ValueError
        ``data`` is not an encoded error.
    """
    try:
        fields = json.loads(data)
        name, message = fields["name"], fields["message"]
        if not isinstance(name, str) or not isinstance(message, str):
            raise TypeError("name and message must be text")
        cls = ERROR_CLASSES.get(name, EpsError)
        if cls is IllegalTransitionError:
            return IllegalTransitionError(message, tuple(str(line) for line in fields.get("story", ())))
        return cls(message)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"{len(data)} bytes are not an encoded error: {error}") from error
