"""Every error Draftworks raises, in one tree.

    DraftworksError
      RecipeError            a recipe or a setting asks for something that cannot be
      EvidenceError          a file, row or tensor is missing or is not what it must be
      StoreError             the object store refused, or holds something else than it should
        StoreRefused           credentials, permissions, or a missing bucket
        StoreUnavailable       no answer, a timeout, or 5xx                      (transient)
        ArtifactMissing        a manifest or a file that it lists is not there
        ArtifactCorrupt        size or sha256 differ from the manifest
        PreconditionFailed     a conditional write lost against another writer
      CommandError           a child process ended with a non-zero status
        CommandKilled          a signal ended it: kill -9, the out-of-memory killer (transient)
        DeadlinePassed         a child process ran, or was silent, for too long
      ServerError            a vLLM server is unusable
        ServerDied             the process ended while it was needed              (transient)
        ServerNotReady         no answer to the readiness probe in time           (transient)
        RequestRejected        the server answered 4xx: the request is wrong
        RequestUnanswered      timeout, lost connection, 408/409/425/429 or 5xx   (transient)

A stage is retried only for errors that are also a TransientError.
"""


class DraftworksError(Exception):
    """Root of the tree; str(error) is a complete message for a person."""


class TransientError(DraftworksError):
    """Mixed into errors that may pass by themselves; what a retry looks for."""


class RecipeError(DraftworksError):
    """A recipe or a setting asks for something that cannot be."""


class EvidenceError(DraftworksError):
    """A file, a row or a tensor is missing or is not what it must be."""


class StoreError(DraftworksError):
    """The object store refused, or holds something else than it should."""


class StoreRefused(StoreError):
    """Credentials, permissions, or a bucket that does not exist."""


class StoreUnavailable(StoreError, TransientError):
    """The object store did not answer, timed out, or answered 5xx."""


class ArtifactMissing(StoreError):
    """A manifest, or a file that it lists, is not in the store."""


class ArtifactCorrupt(StoreError):
    """Size or sha256 of stored bytes differ from their manifest."""


class PreconditionFailed(StoreError):
    """A conditional write lost against another writer."""


class CommandError(DraftworksError):
    """A child process ended with a non-zero exit status."""

    def __init__(self, message: str, exit_status: int | None = None, log_tail: str = "") -> None:
        """Keep the exit status (negative: the signal's number) and the end of the child's log."""
        super().__init__(f"{message}\n{log_tail}" if log_tail else message)
        self.exit_status = exit_status
        self.log_tail = log_tail


class CommandKilled(CommandError, TransientError):
    """A child process was ended by a signal; what it had stored lets the next try go on."""


class DeadlinePassed(CommandError):
    """A child process ran, or stayed silent, for longer than allowed."""


class ServerError(DraftworksError):
    """A vLLM server is unusable."""


class ServerDied(ServerError, TransientError):
    """The server process ended while it was needed."""


class ServerNotReady(ServerError, TransientError):
    """The server did not answer its readiness probe in time."""


class RequestRejected(ServerError):
    """The server answered 4xx: the request itself is wrong."""


class RequestUnanswered(ServerError, TransientError):
    """Timeout, lost connection, 408/409/425/429 or 5xx."""
