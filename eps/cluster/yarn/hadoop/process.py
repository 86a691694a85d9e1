"""``python -m eps.cluster.yarn.hadoop.process``: the child process that submits applications.

See :mod:`eps.hadoop.process` for its protocol.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from eps.cluster.yarn.hadoop.client import HadoopClient
from eps.cluster.yarn.types import Submission
from eps.errors import ResourceError
from eps.hadoop.conf import environment_configuration
from eps.hadoop.process import serve
from eps.hadoop.session import HadoopSession


@cache
def opened() -> HadoopClient:
    """Return this process's client for the cluster of ``HADOOP_CONF_DIR``; requires a login."""
    session = HadoopSession(environment_configuration())
    session.require_login()
    return HadoopClient(session)


def answer(order: Mapping[str, Any]) -> Any:
    """Execute a call and return its result; raises the errors of :func:`opened` and of the method."""
    client = opened()
    match order["method"]:
        case "user":
            return client.user
        case "obtain_tokens":
            return base64.b64encode(client.obtain_tokens(order["file_systems"])).decode("ascii")
        case "cancel_tokens":
            client.cancel_tokens(base64.b64decode(order["tokens"]))
        case "new_application":
            return client.new_application()
        case "submit":
            client.submit(order["application_id"], msgspec.convert(order["submission"], Submission))
        case other:
            raise ResourceError(f"Hadoop's client has no {other}")
    return None


if __name__ == "__main__":
    sys.exit(serve(answer, opened))
