"""Exit codes of all commands, and which error is which."""

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
  1    the job failed, no trial of a sweep finished, or results could not be brought
  2    bad input or usage, or what one has no right to
  3    the change was refused or aborted
  4    no such job, or it, or the cluster or engine, cannot be reached
  130  interrupted
"""


def exit_code(error: Exception) -> int:
    """Return the exit code that stands for ``error``.

    Who did not answer, or is not who should, comes first: a job, a ResourceManager or a NameNode, and also where that
    is only what an error comes from, such as results that cannot be written.
    """
    from eps import errors

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, errors.RpcError | errors.StorageAwayError | errors.ResourceAwayError):
            return EXIT_NOT_FOUND
        cause = cause.__cause__
    denied = errors.AuthenticationError | errors.StorageDeniedError
    if isinstance(error, errors.ConfigError | errors.DataError | denied):
        return EXIT_BAD_INPUT
    if isinstance(error, errors.PlanError):
        return EXIT_REFUSED
    return EXIT_FAILED
