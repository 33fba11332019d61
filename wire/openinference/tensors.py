"""Tensors of the Open Inference Protocol: datatypes, shapes and raw contents.

A tensor's elements are kept flat, in row-major order. Raw contents are little-endian; each BYTES
element stands behind its length in four bytes. What does not fit its shape is refused with the
tensor's name, never cut or padded.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wire.errors import InvalidRequest, NotSupported, TooLarge

# Reading takes time by the element, so their number is bounded before the first is read. A text costs many numbers.
MAX_ELEMENTS = 1 << 18
MAX_TEXTS = 1 << 12
_TEXT_COST = MAX_ELEMENTS // MAX_TEXTS
MAX_DIMENSIONS = 8
_LENGTH = struct.Struct("<I")
# Datatype → the struct code of one element. BYTES has none: its elements are of any length.
CODES = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}

Element = bytes | bool | int | float


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named tensor: `values` are its elements, flat."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: tuple[Element, ...]


def element_count(name: str, datatype: str, shape: Sequence[int]) -> int:
    """How many elements a shape has. Raises InvalidRequest, or TooLarge for more than anybody may send."""
    if len(shape) > MAX_DIMENSIONS:
        raise InvalidRequest(f"tensor {name!r:.80} has {len(shape)} dimensions; at most {MAX_DIMENSIONS}")
    if any(size < 0 for size in shape):
        raise InvalidRequest(f"tensor {name!r:.80} has the shape {list(shape)}; every size must be 0 or more")
    count, most = math.prod(shape), MAX_TEXTS if datatype == "BYTES" else MAX_ELEMENTS
    if count > most:
        raise TooLarge(f"tensor {name!r:.80} has {count} elements; at most {most} of {datatype}")
    return count


def demand_few(tensors: Iterable[tuple[str, str, Sequence[int]]]) -> None:
    """Raises as `element_count` does, for tensors given as (name, datatype, shape), and for all of them together."""
    left = MAX_ELEMENTS
    for name, datatype, shape in tensors:
        left -= element_count(name, datatype, shape) * (_TEXT_COST if datatype == "BYTES" else 1)
        if left < 0:
            raise TooLarge(
                f"the tensors up to {name!r:.80} hold more elements than one request may: {MAX_ELEMENTS} numbers, "
                f"or {MAX_TEXTS} texts"
            )


def demand_datatype(name: str, datatype: str) -> None:
    """Raises NotSupported for a datatype that is not the standard's, or not served."""
    if datatype != "BYTES" and datatype not in CODES:
        raise NotSupported(f"tensor {name!r:.80} is of datatype {datatype!r:.80}; use BYTES, {', '.join(CODES)}")


def demand_fit(name: str, datatype: str, shape: Sequence[int], found: int) -> None:
    """Raises InvalidRequest when a tensor has another number of elements than its shape says, or TooLarge."""
    count = element_count(name, datatype, shape)
    if found != count:
        raise InvalidRequest(
            f"tensor {name!r:.80} has {found} elements and the shape {list(shape)}, which takes {count}"
        )


def from_raw(name: str, datatype: str, shape: Sequence[int], data: bytes) -> tuple[Element, ...]:
    """The elements behind raw contents. Raises InvalidRequest, NotSupported or TooLarge."""
    demand_datatype(name, datatype)
    count = element_count(name, datatype, shape)
    if datatype == "BYTES":
        return _byte_elements(name, shape, count, data)
    code = CODES[datatype]
    size = struct.calcsize(f"<{code}")
    if len(data) != size * count:
        raise InvalidRequest(
            f"tensor {name!r:.80} has {len(data)} bytes of raw contents; {datatype} of shape {list(shape)} "
            f"takes {size * count}"
        )
    return struct.unpack(f"<{count}{code}", data)


def _byte_elements(name: str, shape: Sequence[int], count: int, data: bytes) -> tuple[bytes, ...]:
    found: list[bytes] = []
    position = 0
    while position < len(data):
        end = position + _LENGTH.size
        if end > len(data) or (stop := end + _LENGTH.unpack_from(data, position)[0]) > len(data):
            raise InvalidRequest(
                f"tensor {name!r:.80}: its raw contents break off in element {len(found)}; each element of BYTES "
                "stands behind its length in 4 bytes, little-endian"
            )
        if len(found) == count:
            demand_fit(name, "BYTES", shape, count + 1)
        found.append(data[end:stop])
        position = stop
    demand_fit(name, "BYTES", shape, len(found))
    return tuple(found)


def to_raw(tensor: Tensor) -> bytes:
    """A tensor's elements as raw contents."""
    if tensor.datatype == "BYTES":
        parts = [value for value in tensor.values if isinstance(value, bytes)]
        return b"".join(_LENGTH.pack(len(part)) + part for part in parts)
    return struct.pack(f"<{len(tensor.values)}{CODES[tensor.datatype]}", *tensor.values)
