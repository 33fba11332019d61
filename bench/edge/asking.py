"""One request to a running node, timed: over gRPC as a stream, over HTTP as a whole or as a stream.

The HTTP side is a plain socket: what is measured is the node, not a client library.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from bench.load import prompt_of
from runtime.tokenizer import Tokenizer
from wire.deadline import Deadline
from wire.messages import Constraints, Delta, Final, GenerateRequest, Message, Sampling
from wire.service import Call, InferenceService

AT_ONCE = "prefix:1"  # the client sees every token as it comes
AT_THE_END = "end"
_DEADLINE_S = 240.0
_HTTP_LIMIT = 1 << 24


@dataclass(frozen=True, slots=True)
class Heard:
    """An answer as a client saw it. Seconds since it was asked, but `at` on time.perf_counter's clock."""

    first_s: float
    total_s: float
    at: tuple[float, ...]  # when each piece came
    text: str
    final: Final

    @property
    def tokens(self) -> int:
        return self.final.usage.completion_tokens

    @property
    def decode_per_s(self) -> float:
        """Tokens a second after the first."""
        return (self.tokens - 1) / max(self.total_s - self.first_s, 1e-9)


def chat(text: str, tokens: int, commit_rule: str = AT_ONCE) -> GenerateRequest:
    """A greedy request."""
    return GenerateRequest(
        messages=(Message("user", text),),
        sampling=Sampling(max_tokens=tokens, temperature=0.0),
        constraints=Constraints(commit_rule=commit_rule),
    )


async def ask(service: InferenceService, request: GenerateRequest, piece: Callable[[], None] = lambda: None) -> Heard:
    """`piece` is called at every piece of text. Raises WeirError."""
    began, at, texts = time.perf_counter(), [], []
    final: Final | None = None
    first: float | None = None
    async with aclosing(service.generate(request, Call(Deadline.after(_DEADLINE_S)))) as events:
        async for event in events:
            first = first or time.perf_counter()
            if isinstance(event, Delta):
                at.append(time.perf_counter())
                texts.append(event.text)
                piece()
            elif isinstance(event, Final):
                final = event
    assert final is not None
    ended = time.perf_counter()
    return Heard((first or ended) - began, ended - began, tuple(at), "".join(texts), final)


class HttpClient:
    """One connection that is kept; a context manager."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def __aenter__(self) -> Self:
        host, _, port = self._address.rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port), limit=_HTTP_LIMIT)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    async def chat(self, model: str, text: str, tokens: int) -> tuple[float, dict[str, Any]]:
        """Seconds, and the answer's body. Raises OSError, ValueError."""
        began = time.perf_counter()
        fields = await self._asked(_body(model, text, tokens))
        content = await self._reader.readexactly(int(fields["content-length"]))
        return time.perf_counter() - began, json.loads(content)

    async def stream(self, model: str, text: str, tokens: int) -> float:
        """Tokens a second after the first, of an answer whose every token is seen as it comes. Raises OSError."""
        more = {"stream": True, "stream_options": {"include_usage": True}, "weir": {"commit_rule": AT_ONCE}}
        await self._asked(_body(model, text, tokens) | more)
        first, counted = 0.0, 0
        while (line := await self._reader.readline()) != b"data: [DONE]\n":
            if not line:
                raise ValueError("the node broke off in the middle of a stream")
            if line.startswith(b"data: "):
                first = first or time.perf_counter()
                usage = json.loads(line[6:]).get("usage")
                counted = usage["completion_tokens"] if usage else counted
        took = time.perf_counter() - first
        await self._reader.readuntil(b"\r\n0\r\n\r\n")  # the last chunk: the connection is free again
        return (counted - 1) / max(took, 1e-9)

    async def _asked(self, body: dict[str, Any]) -> dict[str, str]:
        """The header fields of a good answer."""
        content = json.dumps(body).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {self._address}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        self._writer.write(head.encode() + content)
        status, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if " 200 " not in status:
            told = await self._reader.readexactly(int(fields["content-length"]))
            raise ValueError(f"the node answered {status}: {told[:300].decode('utf-8', 'replace')}")
        return fields


def _body(model: str, text: str, tokens: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": model, "messages": messages, "max_tokens": tokens, "temperature": 0}


def prompts_of(tokenizer: Tokenizer, tokens: int, count: int, seed: int) -> list[str]:
    """Different prompts of random words, each that many tokens long."""
    draw = random.Random(seed)
    return [prompt_of(tokenizer, tokens, draw) for _ in range(count)]
