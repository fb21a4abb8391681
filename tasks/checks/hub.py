"""A draft on the model hub, read by ranges like any other source: owner/name, or owner/name@revision."""

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tasks.checks.source import MAX_DEPTH, REQUEST_BLOCK_BYTES
from tasks.errors import EvidenceError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(@[\w./-]+)?")
T = TypeVar("T")


def is_hub_id(text: str) -> bool:
    """Return whether text has the form of a hub id."""
    return HUB_ID.fullmatch(text) is not None


class HubFolder:
    """Files of a hub repository; only the ranges that are asked for travel."""

    def __init__(self, hub_id: str) -> None:
        """Keep the id; nothing is sent yet."""
        from huggingface_hub import HfFileSystem

        self._files: Any = HfFileSystem()
        self._id = hub_id
        self._sizes: dict[str, int] | None = None
        self.label = hub_id
        self.block_bytes = REQUEST_BLOCK_BYTES

    def _listed(self) -> dict[str, int]:
        if self._sizes is None:
            found = self._asked(lambda: self._files.find(self._id, maxdepth=MAX_DEPTH, detail=True))
            sizes = {path.removeprefix(f"{self._id}/"): int(entry["size"] or 0) for path, entry in found.items()}
            if not sizes:
                raise EvidenceError(f"{self._id} on the model hub holds no files.")
            self._sizes = sizes
        return self._sizes

    def names(self) -> Sequence[str]:
        """Return the names of the repository's files."""
        return sorted(self._listed())

    def size(self, name: str) -> int:
        """Return the length of a file in bytes."""
        return self._listed()[name]

    def read(self, name: str, start: int, length: int) -> bytes:
        """Return up to length bytes of a file from start."""
        end = min(start + length, self.size(name))
        return (
            bytes(self._asked(lambda: self._files.cat_file(f"{self._id}/{name}", start, end))) if end > start else b""
        )

    def _asked(self, call: Callable[[], T]) -> T:
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError

        # The bases are OSError and the root of whatever HTTP library this version of the hub client uses.
        outside: Any = (*HfHubHTTPError.__bases__, HFValidationError)
        try:
            return call()
        except outside as error:
            raise EvidenceError(
                f"cannot check {self._id}: there is no such folder here, and the model hub did not give it "
                f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason'}). "
                "Give a folder or an s3:// prefix, or check the id and the network."
            ) from error
