"""Changes that break a good tiny draft in one way; mutations.py says which and what must come of each."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.cases.tiny import D, Raw, TinyDraft, V, integers

Change = Callable[[TinyDraft], object]


def config(**fields: Any) -> Change:
    """Set fields of the config."""
    return lambda draft: draft.config.update(fields)


def decoder(**fields: Any) -> Change:
    """Set fields of the decoder's config."""
    return lambda draft: draft.decoder.update(fields)


def no_config(*keys: str) -> Change:
    """Remove fields of the config."""
    return lambda draft: [draft.config.pop(key) for key in keys]


def drop(*names: str) -> Change:
    """Leave tensors out."""
    return lambda draft: [draft.tensors.pop(name) for name in names]


def tensor(name: str, raw: Raw) -> Change:
    """Store another tensor under a name."""
    return lambda draft: draft.tensors.update({name: raw})


def both(*changes: Change) -> Change:
    """Make several changes."""
    return lambda draft: [change(draft) for change in changes]


def file(name: str, data: bytes) -> Change:
    """Put a file beside, or in place of, the usual ones."""
    return lambda draft: draft.files.update({name: data})


def pattern(name: str, index: int, bits: int) -> Change:
    """Write one 16-bit pattern into a tensor."""

    def change(draft: TinyDraft) -> None:
        raw = draft.tensors[name]
        values = np.frombuffer(raw.data, "<u2").copy()
        values[index] = bits
        draft.tensors[name] = Raw(raw.dtype, raw.shape, values.tobytes())

    return change


def retype(dtype: str, size: int, *names: str) -> Change:
    """Store zeros of another dtype."""

    def change(draft: TinyDraft) -> None:
        for name in names or [name for name in draft.tensors if name not in ("d2t", "t2d")]:
            raw = draft.tensors[name]
            count = int(np.prod(raw.shape))
            draft.tensors[name] = Raw(dtype, raw.shape, bytes(size * count))

    return change


def rename(find: str, put: str) -> Change:
    """Rename the tensors that hold a text."""

    def change(draft: TinyDraft) -> None:
        draft.tensors = {name.replace(find, put, 1): raw for name, raw in draft.tensors.items()}

    return change


def prefix(text: str) -> Change:
    """Put a prefix before every name."""

    def change(draft: TinyDraft) -> None:
        draft.tensors = {f"{text}{name}": raw for name, raw in draft.tensors.items()}

    return change


def offsets(values: Any) -> Change:
    """Store another d2t."""
    return tensor("d2t", integers(np.asarray(values)))


def marks(ids: Any, length: int = V) -> Raw:
    """Return a t2d that marks ids."""
    values = np.zeros(length)
    values[ids] = 1
    return integers(values, "BOOL")


def block(first: int) -> Change:
    """Map to one block of ids."""
    ids = np.arange(first, first + D)
    return both(offsets(ids - np.arange(D)), tensor("t2d", marks(ids)))


def methods(value: Any) -> Change:
    """Set the proposal methods."""
    return lambda draft: draft.config["speculators_config"].update(proposal_methods=value)


def verifier(value: Any) -> Change:
    """Set what the config says of the target."""
    return lambda draft: draft.config["speculators_config"].update(verifier=value)
