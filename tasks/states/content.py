"""Content checks of one row's hidden states: what a file name or a shape cannot tell.

Letters: T tokens, L captured layers (the final state last), D hidden size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.errors import EvidenceError
from tasks.states.tensors import RawTensor

# dtype -> (unsigned type of the same width, mask of the exponent bits: all set means NaN or infinity)
FLOAT_BITS: dict[str, tuple[type[np.unsignedinteger[Any]], int]] = {
    "BF16": (np.uint16, 0x7F80),
    "F16": (np.uint16, 0x7C00),
    "F32": (np.uint32, 0x7F800000),
}


@dataclass(frozen=True)
class ExpectedStates:
    """What every row must look like. num_slots: captured layers plus the final state."""

    num_slots: int
    hidden_size: int


def _check_ids(stored: RawTensor, asked: Sequence[int]) -> None:
    ids = np.frombuffer(stored.data, dtype=np.int64 if stored.dtype == "I64" else np.int32)
    wanted = np.asarray(asked, dtype=ids.dtype)
    if ids.shape != wanted.shape:
        raise EvidenceError(f"states are for {ids.size} tokens, {wanted.size} were sent; switch prefix caching off")
    different = np.flatnonzero(ids != wanted)
    if different.size:
        at = int(different[0])
        raise EvidenceError(f"states belong to other tokens: position {at} is {ids[at]}, {wanted[at]} was sent")


def _check_shape(shape: tuple[int, ...], num_tokens: int, expected: ExpectedStates) -> None:
    wanted = (num_tokens, expected.num_slots, expected.hidden_size)
    if shape == wanted:
        return
    hint = ""
    if len(shape) == 3 and sorted(shape) == sorted(wanted):
        hint = "; the axes are in another order"
    elif len(shape) == 3 and shape[0] < num_tokens:
        hint = "; a cached prefix was left out, switch prefix caching off"
    elif len(shape) == 3 and shape[1] != expected.num_slots:
        hint = "; the server captures other layers than were asked for"
    raise EvidenceError(f"states are {list(shape)}, expected [tokens, slots, hidden] = {list(wanted)}{hint}")


def _check_values(bits_TLD: npt.NDArray[Any], exponent: int) -> None:
    broken = (bits_TLD & exponent) == exponent
    if broken.any():
        token, slot, _ = (int(axis[0]) for axis in np.nonzero(broken))
        raise EvidenceError(
            f"states hold {int(broken.sum())} NaN or infinite values, first at token {token}, slot {slot}"
        )
    for slot in range(bits_TLD.shape[1]):
        values = bits_TLD[:, slot]
        if (values == values.flat[0]).all():
            raise EvidenceError(f"slot {slot} is constant: the layer was not captured")


def check_states(tensors: dict[str, RawTensor], asked: Sequence[int], expected: ExpectedStates) -> RawTensor:
    """Return the states of a row after checking them.

    tensors: hidden_states [T, L, D] and token_ids [T]; asked: the token ids that were sent.
    Raises EvidenceError: other tokens, shape or axis order, NaN or infinite values, a constant slot.
    """
    missing = [name for name in ("hidden_states", "token_ids") if name not in tensors]
    if missing:
        raise EvidenceError(f"the states file lacks {', '.join(missing)}; it holds {sorted(tensors)}")
    states = tensors["hidden_states"]
    if states.dtype not in FLOAT_BITS:
        raise EvidenceError(f"states are {states.dtype}; expected one of {', '.join(FLOAT_BITS)}")
    _check_ids(tensors["token_ids"], asked)
    _check_shape(states.shape, len(asked), expected)
    bits, exponent = FLOAT_BITS[states.dtype]
    _check_values(np.frombuffer(states.data, dtype=bits).reshape(states.shape), exponent)
    return states
