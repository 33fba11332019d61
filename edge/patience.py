"""The times of one escalation: what the edge keeps back, how long the upstream may be silent, whose fault a failure is.

Where nobody but the upstream can answer, it has the request's whole time. Where the edge can, three instants count:
the end of the call; `fallback`, when the edge must begin to hand over, or to write, its own answer; and when a
silence is given up (router.patience). A stream of which the client has seen a word has only the first.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge.ports import Local, Outlook
from router import patience
from router.case import CLOUD_ONLY
from router.decision import EdgeView, Request
from router.latency import edge_forecast, known, upstream_forecast
from wire.deadline import Deadline
from wire.errors import (
    Cancelled,
    Conflict,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    NotSupported,
    PreconditionFailed,
    TooLarge,
    WeirError,
)

_HAND_OVER_S = 0.2  # for an answer the edge has, or will have, and for words on why there is none
_MOST_RESERVED = 0.5  # of the time left
_UNKNOWN_RESERVED = 0.3  # likewise, while nobody knows how long the edge takes
_NOT_ITS_FAULT = (InvalidRequest, NotSupported, NotFound, PreconditionFailed, TooLarge, Conflict, Cancelled)


@dataclass(frozen=True, slots=True)
class Patience:
    """`call` ends the upstream's work; `fallback` is no later, `first_word` no later than that.

    `usual_s` is what the upstream's first word takes of late, `alone` whether the edge cannot stand in for it.
    """

    call: Deadline
    fallback: Deadline
    first_word: Deadline
    usual_s: float | None
    alone: bool = False

    def next_word(self, *, begun: bool) -> Deadline:
        """After an event that came just now and was not shown. What has not `begun` has no less time than it had."""
        if self.alone:
            return self.call
        word = self.fallback.capped(patience.next_word_s(self.fallback.remaining_s()))
        return word if begun else max(word, self.first_word, key=lambda deadline: deadline.at)


def patience_with(
    outlook: Outlook,
    local: Local,
    asked: Request,
    deadline: Deadline,
    sent_bytes: int,
    *,
    in_hand: bool,
    edge_failed: bool,
    streams: bool = False,
) -> Patience:
    """Of a call that begins now. `in_hand`: the edge has an answer. `streams`: it is shown from its first word on."""
    left, usual = deadline.remaining_s(), usual_first_word_s(outlook, sent_bytes)
    if edge_failed or not (in_hand or _can_answer(local.view(), asked, left)):
        return Patience(deadline, deadline, deadline, usual, alone=True)
    reserved = _reserved_s(local.view(), left, in_hand=in_hand, tokens=asked.max_tokens)
    fallback = Deadline(deadline.at - reserved)
    wait_s = patience.first_word_s(left - reserved, usual, node=outlook.is_node())
    call = Deadline(deadline.at - _to_hand_over_s(left)) if streams else fallback
    return Patience(call, fallback, fallback.capped(wait_s), usual)


def _can_answer(edge: EdgeView, asked: Request, left_s: float) -> bool:
    """Whether the edge could begin now and answer, as far as is known."""
    able = edge.available and asked.tier != CLOUD_ONLY and asked.needs <= edge.capabilities
    return able and edge_forecast(edge, asked.expected_tokens or 1).seconds <= left_s


def _reserved_s(edge: EdgeView, left_s: float, *, in_hand: bool, tokens: int) -> float:
    """Of the time left, what the edge needs to give its answer should the upstream fail."""
    if in_hand:
        return _to_hand_over_s(left_s)
    left, forecast = max(left_s, 0.0), edge_forecast(edge, tokens)
    if not forecast.complete:
        return left * _UNKNOWN_RESERVED
    return min(forecast.seconds + _HAND_OVER_S, left * _MOST_RESERVED)


def _to_hand_over_s(left_s: float) -> float:
    return min(_HAND_OVER_S, max(left_s, 0.0) * _MOST_RESERVED)


def usual_first_word_s(outlook: Outlook, sent_bytes: int) -> float | None:
    """What the upstream's first word takes of late, the link and its variation included; None where nobody knows."""
    view = outlook.view(1)
    if known(view.first_token_s) is None:
        return None
    return upstream_forecast(outlook.link(), view, sent_bytes, 1, 0.0).seconds


def tell_failure(outlook: Outlook, error: WeirError, times: Patience, silent_s: float, wordless_s: float) -> None:
    """Tells the outlook how a call failed. A caller's fault is not the upstream's; of a silence the outlook judges.

    `silent_s` is how long nothing had come, `wordless_s` how long the call went on if no word came at all. An upstream
    that is at work when the time is over has not failed, but for one that never comes to a word.

    Nor has one that does not serve or does not have what was asked for: one caller may ask for it and others not. Where
    it is the operator's fault (a model or a path that the upstream does not have), resting would not mend it, and the
    log says so each time.
    """
    if isinstance(error, DeadlineExceeded):
        outlook.fell_silent(silent_s, times.usual_s, wordless_s)
    elif isinstance(error, _NOT_ITS_FAULT):
        outlook.abandoned()
    else:
        outlook.failed()
