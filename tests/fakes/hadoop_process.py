"""Hadoop's own client as a process, without Hadoop: ``python -m tests.fakes.hadoop_process``.

It does what the configuration's folder says: ``refuses`` has the kind and the text of an error, ``dies`` ends it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from eps import errors
from eps.cluster.yarn.hadoop import process
from eps.cluster.yarn.types import Submission
from eps.hadoop.process import serve
from eps.hadoop.token_file import HadoopToken
from tests.fakes.hadoop_tokens import writable_file


class Client:
    user = "ada"

    def __init__(self) -> None:
        self._conf = Path(os.environ["HADOOP_CONF_DIR"])
        self._note("opened")

    def _note(self, *what: Any) -> None:
        with (self._conf / "said").open("a") as file:
            file.write(json.dumps([os.getpid(), *what]) + "\n")

    def obtain_tokens(self, file_systems: Collection[str]) -> bytes:
        self._note("obtain", *file_systems)
        kinds = ("HDFS_DELEGATION_TOKEN", "RM_DELEGATION_TOKEN")
        return writable_file([HadoopToken(b"i", b"p", kind, "rm:8032") for kind in kinds])

    def cancel_tokens(self, tokens: bytes) -> None:
        self._note("cancel", len(tokens))

    def new_application(self) -> str:
        print("what Java prints")
        if (self._conf / "dies").exists():
            os._exit(7)
        return "application_1_0001"

    def submit(self, application_id: str, submission: Submission) -> None:
        if (self._conf / "refuses").exists():
            kind, _, text = (self._conf / "refuses").read_text().partition(": ")
            raise getattr(errors, kind)(text)
        if (self._conf / "takes long").exists():
            self._note("submitting")
            time.sleep(600.0)
        self._note("submit", application_id, repr(submission))


if __name__ == "__main__":
    process.opened = cache(Client)  # type: ignore[assignment]
    sys.exit(serve(process.answer, process.opened))
