"""The vocabulary map of a draft: d2t (offsets) and t2d (marks), read from its weight file.

Legend: V target vocabulary, D draft vocabulary. d2t [D] int64: target id = draft id + d2t[draft id].
t2d [V] bool: true where the target id can be drafted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.checks.header import Tensor
from tasks.checks.source import ByteSource

INTEGER_DTYPES: Mapping[str, str] = {
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
}
# Far above any vocabulary; a longer map is not read.
MAX_MAP_ELEMENTS = 4 * 2**20


@dataclass(frozen=True)
class Maps:
    """The maps that could be read; None where there is none, or none of a usable dtype and rank."""

    d2t_D: NDArray[np.int64] | None = None
    t2d_V: NDArray[np.uint8] | None = None

    @property
    def ids_D(self) -> NDArray[np.int64] | None:
        """Return the target id of every draft id, in range or not."""
        if self.d2t_D is None:
            return None
        with np.errstate(over="ignore"):
            return np.arange(len(self.d2t_D), dtype=np.int64) + self.d2t_D

    @property
    def marked(self) -> NDArray[np.int64] | None:
        """Return the target ids that t2d marks."""
        return None if self.t2d_V is None else np.flatnonzero(self.t2d_V).astype(np.int64)


def read_maps(source: ByteSource, tensors: Mapping[str, Tensor]) -> Maps:
    """Return d2t and t2d of a draft."""
    d2t, t2d = tensors.get("d2t"), tensors.get("t2d")
    return Maps(
        d2t_D=_vector(source, d2t, INTEGER_DTYPES) if d2t else None,
        t2d_V=_vector(source, t2d, {"BOOL": "u1"}) if t2d else None,
    )


def _vector(source: ByteSource, tensor: Tensor, dtypes: Mapping[str, str]) -> NDArray[Any] | None:
    if tensor.dtype not in dtypes or len(tensor.shape) != 1 or tensor.num_elements > MAX_MAP_ELEMENTS:
        return None
    values = np.frombuffer(source.read(tensor.file, tensor.start, tensor.num_bytes), dtype=dtypes[tensor.dtype])
    return values if tensor.dtype == "BOOL" else values.astype(np.int64)
