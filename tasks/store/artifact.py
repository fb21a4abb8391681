"""ArtifactRef: what crosses between stages instead of the artifact itself.

ArtifactRef(kind="corpus", fingerprint="9f86d0...64 hex").prefix == "corpus/9f86d0.../"
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Kind = Annotated[str, Field(pattern=r"^[a-z]+(-[a-z]+)*$", max_length=40)]
Fingerprint = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ArtifactRef(BaseModel):
    """Names one artifact by its kind and the sha256 of everything that made it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    fingerprint: Fingerprint

    @property
    def prefix(self) -> str:
        """Return the key prefix that holds the artifact, with its closing slash."""
        return f"{self.kind}/{self.fingerprint}/"

    def __str__(self) -> str:
        """Return kind and the first 12 digits, as people see it in logs and pages."""
        return f"{self.kind}/{self.fingerprint[:12]}"
