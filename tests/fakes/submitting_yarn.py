"""The side of a client of YARN that submits an application."""

from __future__ import annotations

from collections.abc import Collection

from eps.cluster.yarn.application import Application
from eps.cluster.yarn.types import ApplicationReport, Launch, Submission
from eps.errors import JobNotFoundError
from eps.storage.jobdir import JobDir
from tests.fakes.telling_yarn import TellingYarn

#: Of the application that is submitted.
ID = "application_1_0001"


class Cluster(TellingYarn):
    """A client of YARN that submits and ends as a test says: by raising, or not.

    Parameters
    ----------
    directory : JobDir
        Where whoever submits notes the application.
    """

    def __init__(self, directory: JobDir) -> None:
        super().__init__()
        self._directory = directory
        self.submitting: BaseException | None = None
        self.killing: BaseException | None = None
        self.killed: list[str] = []
        #: What the cluster says of the application; empty: it knows none.
        self.state = ""
        #: What the directory said of its application when YARN was told of it.
        self.noted: Application | None = None
        self.launch: Launch | None = None
        self.submission: Submission | None = None
        #: What an application is called that is to be submitted.
        self.started = ID

    def prepare(self) -> None:
        pass

    def obtain_tokens(self, file_systems: Collection[str] = ()) -> bytes:
        return b""

    def new_application(self) -> str:
        return self.started

    def submit(self, application_id: str, submission: Submission) -> None:
        self.noted, self.launch = Application.read(self._directory), submission.launch
        self.submission = submission
        if self.submitting is not None:
            raise self.submitting

    def report(self, application_id: str) -> ApplicationReport:
        if not self.state:
            raise JobNotFoundError(f"no such application: {application_id}")
        return ApplicationReport(
            application_id=application_id,
            name="",
            application_type="EPS",
            user=self.user,
            queue="default",
            state=self.state,
            final_status=self.state,
            diagnostics="",
            host="",
            rpc_port=-1,
            tracking_url="",
            progress=0.0,
            tags=(),
            attempt=1,
            started_ms=0,
            finished_ms=0,
        )

    def kill(self, application_id: str, diagnostics: str = "") -> None:
        self.killed.append(application_id)
        if self.killing is not None:
            raise self.killing
