"""What an endpoint sends, as Weir's events: chunks of a stream, or a whole completion where it does not stream.

Whatever has another shape than it should is a broken answer: Unavailable, since another try may fare better.
A Weir node tells its provenance under `weir`; of any other endpoint only the tier is known: the cloud.
Pure: no sockets, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from edge.http.json_values import more_values_than
from edge.openai_upstream import faults
from edge.openai_upstream.faults import broken
from edge.openai_upstream.logprobs import Logprobs, Ranked
from edge.openai_upstream.words import words
from runtime import foreign_json
from wire.errors import Unavailable
from wire.messages import Delta, Final, Reason, Tier, ToolCall, Usage

Json = Mapping[str, Any]
DONE = b"[DONE]"
_FINISHES = ("stop", "length", "tool_calls", "content_filter")
_MOST_CALLS = 128
# Values (of lists and objects) take about 0.5 µs each to build: 10 ms, and 50 ms for an answer that is not streamed.
_MOST_OF_EVENT, _MOST_AT_ONCE = 20_000, 100_000
_MOST_TIMINGS, _LONGEST_STAGE = 64, 128
_EVER_MS = 1e12


@dataclass(slots=True)
class _Call:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Answer:
    """One answer as it comes in. `node` is who to say it came from, `secret` what must not be shown."""

    node: str
    request_id: str
    logprobs: Logprobs
    secret: str = field(default="", repr=False)
    finish_reason: str = ""
    deltas: int = 0
    done: bool = False
    refused: bool = False
    _usage: Usage | None = None
    _weir: Json = field(default_factory=dict)
    _calls: dict[int, _Call] = field(default_factory=dict)

    def event(self, data: bytes) -> Iterator[Delta]:
        """What one server-sent event adds. Raises WeirError."""
        if data.strip() == DONE:
            self.done = True
            return
        yield from self.document(_parsed(data, _MOST_OF_EVENT), "delta")

    def whole(self, data: bytes) -> Iterator[Delta]:
        """What a completion adds that came as one document. Raises WeirError."""
        yield from self.document(_parsed(data, _MOST_AT_ONCE), "message")
        self.done = True

    def document(self, told: Any, part: str) -> Iterator[Delta]:
        if not isinstance(told, dict):
            raise broken("an event is no JSON object")
        error = faults.of_document(told, self.secret)
        if error is not None:
            raise error
        self._usage = _usage(told.get("usage")) or self._usage
        if isinstance(told.get("weir"), dict):
            self._weir = told["weir"]
        choices = told.get("choices", [])
        if not isinstance(choices, list):
            raise broken("choices is no list")
        if len(choices) > 1:
            raise broken(f"{len(choices)} choices at once, where one was asked for")
        for choice in choices:
            if not isinstance(choice, dict):
                raise broken("a choice is no JSON object")
            index = choice.get("index")
            if index not in (None, 0):  # some leave it out, or null
                raise broken(f"a choice's index is {index!r:.40}, where one choice was asked for")
            yield from self._choice(choice, part)

    def _choice(self, choice: Json, part: str) -> Iterator[Delta]:
        piece = choice.get(part)
        if piece is None:
            text = choice.get("text") or ""  # of /completions
        elif isinstance(piece, dict):
            text = self._words(piece)
            self._tool_calls(piece.get("tool_calls") or [])
        else:
            raise broken(f"{part} is no JSON object")
        if not isinstance(text, str):
            raise broken("the content is no text")
        tokens = self.logprobs.ranked(choice.get("logprobs"))
        if text or tokens:
            self.deltas += 1
            yield _delta(_text(text), tokens)
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish:
            self.finish_reason = "tool_calls" if finish == "function_call" else finish

    def _words(self, piece: Json) -> Any:
        """The text of a piece. A refusal is what the model says in place of an answer."""
        content, refusal = piece.get("content") or "", piece.get("refusal")
        if not isinstance(refusal, str) or not refusal:
            return content
        self.refused = True
        return content + refusal if isinstance(content, str) else content

    def _tool_calls(self, pieces: Any) -> None:
        if not isinstance(pieces, list):
            raise broken("tool_calls is no list")
        for place, piece in enumerate(pieces):
            if not isinstance(piece, dict):
                raise broken("a tool call is no JSON object")
            index = piece.get("index", place)
            if not isinstance(index, int) or not 0 <= index < _MOST_CALLS:
                raise broken(f"a tool call's index is {index!r:.40}")
            call = self._calls.setdefault(index, _Call())
            function = piece.get("function") or {}
            if not isinstance(function, dict):
                raise broken("a tool call's function is no JSON object")
            call.id = call.id or _text(piece.get("id"))
            call.name = call.name or _text(function.get("name"))
            call.arguments.append(_text(function.get("arguments")))

    @property
    def ended(self) -> bool:
        """Whether the endpoint said how the answer ended; without that it broke off."""
        return bool(self.finish_reason)

    def final(self, hops: int) -> Final:
        """The end. `hops` are those up to this endpoint. Raises Unavailable for an answer that broke off."""
        if not self.ended:
            raise Unavailable("the upstream's answer broke off without an end")
        calls = tuple(
            ToolCall(call.id or f"call_{index}", call.name, "".join(call.arguments) or "{}")
            for index, call in sorted(self._calls.items())
        )
        finish = self.finish_reason if self.finish_reason in _FINISHES else "stop"
        if self.refused and finish == "stop":
            finish = "content_filter"
        # Without a count an event stands for a token, which is what most endpoints send.
        usage = self._usage or Usage(0, self.deltas)
        plain = Final(finish, usage, Tier.CLOUD, reason=Reason.CLOUD_ONLY, hops=hops, tool_calls=calls)
        return _with_provenance(plain, self._weir, self.node, self.request_id)


def _with_provenance(final: Final, weir: Json, node: str, request_id: str) -> Final:
    """The Final with what a Weir node told of itself; anything of the wrong kind counts as not told."""
    tier, reason = _member(Tier, weir.get("tier")), _member(Reason, weir.get("reason"))
    return Final(
        final.finish_reason,
        final.usage,
        tier or final.tier,
        release=words(weir.get("release")),
        weight_digest=words(weir.get("weight_digest")),
        precision=_whole(weir.get("precision")),
        weight_format=words(weir.get("weight_format")),
        confidence=_share(weir.get("confidence")),
        threshold=_share(weir.get("threshold")),
        reason=reason or final.reason,
        degraded=weir.get("degraded") is True,
        wanted_reason=_member(Reason, weir.get("wanted_reason")),
        audited=weir.get("audited") is True,
        timings_ms=_timings(weir.get("timings_ms")),
        hops=max(_whole(weir.get("hops")), final.hops),
        edge_tokens_spent=_whole(weir.get("edge_tokens_spent")),
        request_id=request_id,
        node=words(weir.get("node")) or node,
        tool_calls=final.tool_calls,
    )


def _parsed(data: bytes, most: int) -> Any:
    """JSON is built in the event loop: in a thread it would hold the lock of the interpreter all the same."""
    if more_values_than(data, most):
        raise broken(f"it holds more than {most} values at once, which is the most")
    try:
        return foreign_json.read_with_infinities(data)
    except foreign_json.NotJson as error:
        raise broken("an event is not JSON") from error


def _usage(told: Any) -> Usage | None:
    if not isinstance(told, dict):
        return None
    details = told.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return Usage(_whole(told.get("prompt_tokens")), _whole(told.get("completion_tokens")), _whole(cached))


def _delta(text: str, tokens: list[Ranked]) -> Delta:
    if not tokens:
        return Delta(text)
    return Delta(
        text,
        tuple(token.token_id for token, _ in tokens),
        tuple(token.logprob for token, _ in tokens),
        token_bytes=tuple(token.text for token, _ in tokens),
        top_logprobs=tuple(top for _, top in tokens) if any(top for _, top in tokens) else (),
    )


def _text(value: Any) -> str:
    """Text that can be passed on: JSON can spell half a surrogate pair, which has no UTF-8."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else ""


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else 0


def _share(value: Any) -> float | None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
    return float(value) if fits else None


def _member(kind: Any, value: Any) -> Any:
    return next((member for member in kind if member.value == value), None)


def _timings(told: Any) -> dict[str, float]:
    if not isinstance(told, dict):
        return {}
    sound = ((name, value) for name, value in told.items() if isinstance(value, int | float) and 0 <= value < _EVER_MS)
    return {words(name, _LONGEST_STAGE): float(value) for name, value in islice(sound, _MOST_TIMINGS)}
