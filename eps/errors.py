"""The one tree of errors.

::

    EpsError
    ├── ConfigError (ValueError)            a setting, flag, TOML key or model combination that cannot work
    ├── DataError (ValueError)              malformed or unusable input data; names file, line and text
    ├── PlanError                           a change of size that is refused or cannot be planned
    │   ├── UnknownMemberError              a name that is not a member of the job
    │   └── JobFinishedError                a change asked of a job that is finished or finishing
    ├── ProtocolError                       a peer said something that the protocol does not allow
    │   ├── IllegalTransitionError          a state machine was asked for a step that it does not have
    │   ├── FrameError                      bytes on the data plane that are not a frame
    │   └── AuthenticationError             a peer that does not prove that it belongs to the job
    ├── TransferError                       a partition or split arrived damaged
    ├── TakenOverError                      another server owns the partition now
    ├── StorageError (OSError)              a journal, export or cache that cannot be read or written
    │   ├── StorageAwayError                a file system that cannot be reached, or was waited for in vain
    │   └── StorageDeniedError              a file system that refuses who asks, or what one has no right to
    ├── ResourceError                       a container could not be had
    │   └── ResourceAwayError               who gives containers cannot be reached
    ├── TrainingError                       training itself failed (diverged, user model raised)
    │   └── StoppedEarlyError               a scheduler ended the job for its early feedback
    └── RpcError
        ├── PeerUnavailableError (ConnectionError)
        ├── DeadlineError (TimeoutError)    a wait ended; says what it waited for
        └── JobNotFoundError (LookupError)  no job of that name under EPS_HOME
    JobExistsError is a ConfigError: a job of that name is already running.

Messages give the value and the rule.  ``eps.net.calls.call`` holds the only map between these and gRPC status.
"""

from __future__ import annotations

#: In every message about a job that diverged.  Under BSP it does so whenever it is tried.
DIVERGED = "training diverged"


class EpsError(Exception):
    """Base of every error that EPS raises on purpose."""


class ConfigError(EpsError, ValueError):
    """A setting that cannot work; the message gives the value and the rule."""


class JobExistsError(ConfigError):
    """A job of that name is already running."""


class DataError(EpsError, ValueError):
    """Input data that cannot be used; the message names file, line and text where it can."""


class PlanError(EpsError):
    """A change of size that is refused; the message is the reason."""


class UnknownMemberError(PlanError):
    """A name that is not a member of the job."""


class JobFinishedError(PlanError):
    """A change asked of a job that has finished or has granted its last iteration."""


class ProtocolError(EpsError):
    """A peer said something that the protocol does not allow."""


class IllegalTransitionError(ProtocolError):
    """A state machine was asked for a step that it does not have.

    Attributes
    ----------
    story : tuple of str
        What happened to the subject before, oldest first.
    """

    def __init__(self, message: str, story: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.story = story


class FrameError(ProtocolError):
    """Bytes on the data plane that are not a well-formed frame."""


class AuthenticationError(ProtocolError):
    """A peer that does not prove that it belongs to the job; the message contains no secret."""


class TakenOverError(EpsError):
    """Somebody else owns the partition now: what the one before did later is void."""


class TransferError(EpsError):
    """A partition or split that arrived damaged, or did not arrive."""


class StorageError(EpsError, OSError):
    """A journal, export or cache that cannot be read or written."""


class StorageAwayError(StorageError):
    """A file system that cannot be reached, or was waited for in vain."""


class StorageDeniedError(StorageError):
    """A file system that refuses who asks, or what one has no right to."""


class ResourceError(EpsError):
    """A container that could not be had or was lost."""


class ResourceAwayError(ResourceError):
    """Who gives containers cannot be reached; he may be about to come back."""


class TrainingError(EpsError):
    """Training itself failed: a loss that is not finite, or a model that raised."""


class StoppedEarlyError(TrainingError):
    """A scheduler ended the job: others had better early feedback.

    Attributes
    ----------
    feedback : float
        Its early feedback; NaN where that is not known.
    """

    def __init__(self, message: str, feedback: float = float("nan")) -> None:
        super().__init__(message)
        self.feedback = feedback


class RpcError(EpsError):
    """A call to another process failed."""


class PeerUnavailableError(RpcError, ConnectionError):
    """The peer cannot be reached."""


class DeadlineError(RpcError, TimeoutError):
    """A wait ended at its deadline; the message says what it waited for."""


class JobNotFoundError(RpcError, LookupError):
    """No job of that name under EPS_HOME."""
