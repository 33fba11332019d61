"""Server-sent events from bytes as they come: bounded, and whatever way the bytes are cut.

An event is one or more `data:` lines up to an empty line (WHATWG HTML, 9.2). Comments, other fields and
events without data are passed over. Lines end in LF, CRLF or CR.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Iterator

from wire.errors import Unavailable

MAX_LINE_BYTES = 1 << 20
MAX_EVENT_BYTES = 2 << 20
MAX_TOTAL_BYTES = 64 << 20
MAX_WHOLE_BYTES = 8 << 20  # of an answer that is not streamed, which is read at once
_END = re.compile(rb"\r\n|\n|\r")
_TURN_S = 0.002  # then others are served
_SLICE_BYTES = 4096  # lines without an event come to an end soon as well


class EventReader:
    """Feed it bytes; it yields the data of each event. Raises Unavailable for what has no end."""

    def __init__(
        self, max_line: int = MAX_LINE_BYTES, max_event: int = MAX_EVENT_BYTES, max_total: int = MAX_TOTAL_BYTES
    ) -> None:
        self._max_line, self._max_event, self._max_total = max_line, max_event, max_total
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._total = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The data of every event that `data` completes."""
        self._total += len(data)
        if self._total > self._max_total:
            raise Unavailable(f"the upstream's answer has more than {self._max_total} bytes, which is the most")
        # Looked for from the start of what is new: an endless line must not be searched again and again.
        rest, start, position = self._rest, 0, max(len(self._rest) - 1, 0)
        rest += data
        while (end := _END.search(rest, position)) is not None:
            # A CR at the very end may be half of a CRLF.
            if end.group() == b"\r" and end.end() == len(rest):
                break
            line, start = bytes(rest[start : end.start()]), end.end()
            position = start
            event = self._line(line)
            if event is not None:
                yield event
        del rest[:start]
        if len(self._rest) > self._max_line:
            raise Unavailable(f"the upstream sent a line of more than {self._max_line} bytes, which is the most")

    def end(self) -> Iterator[bytes]:
        """What stands there when the stream ends: some servers leave out the last empty line."""
        rest, self._rest = bytes(self._rest).rstrip(b"\r"), bytearray()
        for line in (rest, b"") if rest else (b"",):
            event = self._line(line)
            if event is not None:
                yield event

    def _line(self, line: bytes) -> bytes | None:
        if not line:
            data, self._data, self._size = self._data, [], 0
            return b"\n".join(data) if data else None
        name, _, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ")
            self._size += len(value) + 1  # a line without data counts as well, or any number of them would pass
            if self._size > self._max_event:
                raise Unavailable(f"the upstream sent an event of more than {self._max_event} bytes, which is the most")
            self._data.append(value)
        return None


async def events_in_turns(blocks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The data of every event of a body that comes in blocks, an empty one at its end. Raises Unavailable.

    One read may bring thousands of events, or of lines that are none: whoever takes them, others get their turns.
    """
    reader = EventReader()
    began = time.monotonic()
    async for block in blocks:
        for start in range(0, max(len(block), 1), _SLICE_BYTES):
            part = block[start : start + _SLICE_BYTES]
            for data in reader.feed(part) if part else reader.end():
                yield data
                began = await _turn(began)
            began = await _turn(began)


async def _turn(began: float) -> float:
    """Gives way where this one's turn, which began then, is over; says when it began."""
    if time.monotonic() - began <= _TURN_S:
        return began
    await asyncio.sleep(0)
    return time.monotonic()
