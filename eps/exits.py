"""Exit codes of all commands, and which error is which.  L1."""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_REFUSED = 3
EXIT_NOT_FOUND = 4
EXIT_INTERRUPTED = 130

EXIT_CODES = """\
exit codes:
  0    done
  1    the job failed
  2    bad input or usage
  3    the change was refused or aborted
  4    no such job, or it cannot be reached
  130  interrupted
"""


def exit_code(error: Exception) -> int:
    """Return the exit code that stands for ``error``."""
    from eps import errors

    if isinstance(error, errors.ConfigError | errors.DataError | errors.AuthenticationError):
        return EXIT_BAD_INPUT
    if isinstance(error, errors.PlanError):
        return EXIT_REFUSED
    if isinstance(error, errors.JobNotFoundError | errors.PeerUnavailableError | errors.DeadlineError):
        return EXIT_NOT_FOUND
    return EXIT_FAILED
