"""All errors of EPS, in one tree.

::

    EpsError
    ├── ConfigError (ValueError)            a setting, flag, TOML key or model combination that cannot work
    ├── DataError (ValueError)              malformed or unusable input data; names file, line and text
    ├── PlanError                           a change of size is refused or cannot be planned
    │   ├── UnknownMemberError              the job has no member of that name
    │   └── JobFinishedError                the job has finished or granted its last iteration: no more changes
    ├── ProtocolError                       a peer violated the protocol
    │   ├── IllegalTransitionError          the state machine does not allow the transition
    │   ├── FrameError                      bytes on the data plane are not a frame
    │   └── AuthenticationError             a peer cannot prove that it belongs to the job
    ├── TransferError                       a partition or split arrived damaged
    ├── TakenOverError                      another process took over the role of the caller
    ├── StorageError (OSError)              a record, export or cache cannot be read or written
    │   ├── StorageAwayError                a file system is unreachable, or retries timed out
    │   └── StorageDeniedError              a file system refused the credentials or the access
    ├── ResourceError                       a container was not granted, or was lost
    │   └── ResourceAwayError               the resource manager is unreachable
    ├── TrainingError                       training itself failed (diverged, user model raised)
    │   └── StoppedEarlyError               a scheduler stopped the job because of its early feedback
    └── RpcError
        ├── PeerUnavailableError (ConnectionError)
        ├── DeadlineError (TimeoutError)    a wait timed out; says what it waited for
        └── JobNotFoundError (LookupError)  no job of that name under EPS_HOME
    JobExistsError is a ConfigError: a job of that name is already running.

Messages give the value and the rule.  ``eps.net.calls.call`` maps these errors to gRPC status codes and back.
"""

from __future__ import annotations

#: Part of every message about a diverged job.  Under BSP a retry diverges again.
DIVERGED = "training diverged"


class EpsError(Exception):
    """Base of every error that EPS raises on purpose."""


class ConfigError(EpsError, ValueError):
    """A setting is invalid; the message gives the value and the rule."""


class JobExistsError(ConfigError):
    """A job of that name is already running."""


class DataError(EpsError, ValueError):
    """Input data is unusable; the message names file, line and text where it can."""


class PlanError(EpsError):
    """A change of size is refused; the message says why."""


class UnknownMemberError(PlanError):
    """The job has no member of that name."""


class JobFinishedError(PlanError):
    """A change was requested after the job finished or granted its last iteration."""


class ProtocolError(EpsError):
    """A peer violated the protocol."""


class IllegalTransitionError(ProtocolError):
    """The state machine does not allow the requested transition.

    Attributes
    ----------
    story : tuple of str
        Earlier events of the same subject, oldest first.
    """

    def __init__(self, message: str, story: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.story = story


class FrameError(ProtocolError):
    """Bytes on the data plane are not a well-formed frame."""


class AuthenticationError(ProtocolError):
    """A peer cannot prove that it belongs to the job; the message contains no secret."""


class TakenOverError(EpsError):
    """Another process took over the role of the caller; later actions of the caller are void."""


class TransferError(EpsError):
    """A partition or split arrived damaged, or did not arrive."""


class StorageError(EpsError, OSError):
    """A record, export or cache cannot be read or written."""


class StorageAwayError(StorageError):
    """A file system is unreachable, or retries timed out."""


class StorageDeniedError(StorageError):
    """A file system refused the credentials or the access."""


class ResourceError(EpsError):
    """A container was not granted, or was lost."""


class ResourceAwayError(ResourceError):
    """The resource manager is unreachable; it may come back."""


class TrainingError(EpsError):
    """Training failed: the loss is not finite, or the user's model raised."""


class StoppedEarlyError(TrainingError):
    """A scheduler stopped the job because others had better early feedback.

    Attributes
    ----------
    feedback : float
        The job's early feedback; NaN if unknown.
    """

    def __init__(self, message: str, feedback: float = float("nan")) -> None:
        super().__init__(message)
        self.feedback = feedback


class RpcError(EpsError):
    """A call to another process failed."""


class PeerUnavailableError(RpcError, ConnectionError):
    """The peer is unreachable."""


class DeadlineError(RpcError, TimeoutError):
    """A wait timed out; the message says what it waited for."""


class JobNotFoundError(RpcError, LookupError):
    """No job of that name under EPS_HOME."""
