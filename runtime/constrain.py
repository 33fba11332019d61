"""Answers that keep to a grammar: which tokens may come next, by llguidance.

Invariants: a grammar is compiled within the bounds below or refused with the reason; a compiled grammar
is copied for each answer, never shared by two; computing a mask lets go of the interpreter lock. A
constraint that can no longer be computed (its bounds were passed) raises ConstraintFailed: an answer that
is only half held to its grammar is never given as one that is.

Must not know: requests, batching, how a token is chosen. `runtime.ort.sampling.Constraint` is what it makes.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import llguidance
import numpy as np
import numpy.typing as npt

from runtime import grammars
from runtime.chat import ToolSpec
from runtime.grammars import GrammarError
from runtime.ort.sampling import ConstraintFailed
from runtime.token_bytes import Spelling
from runtime.tokenizer import Tokenizer
from runtime.tool_calls import CallForm

Mask = npt.NDArray[np.uint32]

_BITS = 32
_GRAMMARS_KEPT = 32
_USES_OF_ONE = 256  # a compiled grammar's lexer grows with what is written by it: make it anew now and then
_SHOWN = 300


class Unconstrainable(ValueError):
    """The tokenizer is of a kind whose tokens cannot be held to a grammar."""


def limits() -> llguidance.LLParserLimits:
    """What compiling one grammar and computing one mask may take."""
    return llguidance.LLParserLimits(
        initial_lexer_fuel=500_000,
        step_lexer_fuel=200_000,
        step_max_items=25_000,
        max_items_in_row=2_000,
        max_lexer_states=25_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


class Vocabulary:
    """A tokenizer's tokens as llguidance takes them. Shared by all that have the same tokens and end tokens."""

    def __init__(self, spelling: Spelling, stop_ids: Sequence[int]) -> None:
        """Raises Unconstrainable."""
        self._spelling = spelling
        self.size = spelling.size
        try:
            wrapped = llguidance.TokenizerWrapper(_Wrapped(spelling, stop_ids))
            self.tokens = llguidance.LLTokenizer(wrapped, eos_token=list(stop_ids))
        except (ValueError, RuntimeError, TypeError, IndexError) as error:
            raise Unconstrainable(f"this tokenizer cannot be held to a grammar: {error}") from error

    def spell(self, token_id: int) -> bytes:
        return self._spelling.spell(token_id)


class _Wrapped:
    """What llguidance asks of a tokenizer."""

    def __init__(self, spelling: Spelling, stop_ids: Sequence[int]) -> None:
        self._spelling = spelling
        self.eos_token_id = stop_ids[0]
        self.bos_token_id = None
        self.tokens = [spelling.spell(token_id) for token_id in range(spelling.size)]
        self.special_token_ids = sorted(spelling.special_ids | set(stop_ids))

    def __call__(self, text: str | bytes) -> list[int]:
        return self._spelling.encode(text if isinstance(text, str) else text.decode())


class ConstraintMaker:
    """Makes the constraints of one model's answers. Thread-safe; compiling takes a moment: not in the event loop."""

    def __init__(self, tokenizer: Tokenizer, rows: int) -> None:
        """`rows` is the size of a logits row, which may be more than the tokens. Raises Unconstrainable."""
        self._vocabulary = _shared(tokenizer)
        self._rows = max(rows, self._vocabulary.size)
        self._limits = limits()
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, tuple[llguidance.LLMatcher, int]] = OrderedDict()

    def json_object(self) -> GrammarConstraint:
        """Holds an answer to be any JSON object."""
        return self._made(grammars.json_object(), is_schema=True)

    def json_schema(self, schema: str) -> GrammarConstraint:
        """Holds an answer to a JSON schema. Raises GrammarError."""
        return self._made(grammars.json_schema(schema), is_schema=True)

    def call(self, tools: Sequence[ToolSpec], form: CallForm) -> GrammarConstraint:
        """Holds an answer to be one call of one of `tools`. Raises GrammarError."""
        return self._made(grammars.calls(tools, form, begun=False))

    def call_if_begun(self, tools: Sequence[ToolSpec], form: CallForm) -> TriggeredConstraint:
        """Leaves an answer free until it begins a call, which is then held to be one and ends it.

        `form` must have a trigger. Raises GrammarError.
        """
        rest = self._made(grammars.calls(tools, form, begun=True))
        return TriggeredConstraint(form.trigger.encode(), rest, self._vocabulary)

    def _made(self, grammar: str, *, is_schema: bool = False) -> GrammarConstraint:
        with self._lock:
            kept, uses = self._compiled.pop(grammar, (None, 0))
        if kept is None or uses >= _USES_OF_ONE:
            kept, uses = self._compile(grammar, is_schema), 0
        copy = kept.deep_copy()
        with self._lock:
            self._compiled[grammar] = (kept, uses + 1)
            while len(self._compiled) > _GRAMMARS_KEPT:
                self._compiled.popitem(last=False)
        return GrammarConstraint(copy, self._vocabulary.size, self._rows)

    def _compile(self, grammar: str, is_schema: bool) -> llguidance.LLMatcher:
        text = llguidance.LLMatcher.grammar_from_json_schema(grammar) if is_schema else grammar
        matcher = llguidance.LLMatcher(self._vocabulary.tokens, text, log_level=0, limits=self._limits)
        if not matcher.is_error():
            matcher = self._probed(matcher)
        if matcher.is_error():
            raise GrammarError(f"this schema cannot be answered by: {_reason(matcher)}")
        return matcher

    def _probed(self, matcher: llguidance.LLMatcher) -> llguidance.LLMatcher:
        """`matcher`, or a copy that broke on the first steps of an answer: told now, not in the middle of one."""
        probe = matcher.deep_copy()
        for text in (b"", b"{", b'"'):
            tokens = self._vocabulary.tokens.tokenize_bytes(text)
            if probe.validate_tokens(tokens) < len(tokens):
                break
            probe.consume_tokens(tokens)
            probe.compute_bitmask()
            if probe.is_error():
                return probe
        return matcher


class GrammarConstraint:
    """One answer's way through a grammar. Satisfies runtime.ort.sampling.Constraint."""

    def __init__(self, matcher: llguidance.LLMatcher, tokens: int, rows: int) -> None:
        self._matcher = matcher
        self._bits: Mask = np.zeros(-(-rows // _BITS), np.uint32)
        self._address = self._bits.ctypes.data
        self._bytes = -(-tokens // _BITS) * self._bits.itemsize

    def mask(self) -> Mask | None:
        """See Constraint. Raises ConstraintFailed."""
        self._matcher.unsafe_compute_mask_ptr(self._address, self._bytes)
        self._demand_sound()
        return self._bits

    def accept(self, token: int) -> bool:
        """See Constraint. Raises ConstraintFailed."""
        if not self._matcher.consume_token(token):
            self._demand_sound()
            raise ConstraintFailed(f"token {token} was chosen, which the grammar does not allow")
        return bool(self._matcher.is_stopped())

    def takes(self, tokens: Sequence[int]) -> bool:
        """Whether all of `tokens` may come next; they have been taken then."""
        return self._matcher.validate_tokens(list(tokens)) == len(tokens) and self._matcher.consume_tokens(list(tokens))

    def _demand_sound(self) -> None:
        if self._matcher.is_error():
            raise ConstraintFailed(f"the answer's grammar became too complex: {_reason(self._matcher)}")


class TriggeredConstraint:
    """Free until `trigger` is written, held to `rest` from there on. Satisfies runtime.ort.sampling.Constraint."""

    def __init__(self, trigger: bytes, rest: GrammarConstraint, vocabulary: Vocabulary) -> None:
        self._trigger, self._rest, self._vocabulary = trigger, rest, vocabulary
        self._tail = b""
        self._begun = self._free = False

    def mask(self) -> Mask | None:
        """See Constraint. Raises ConstraintFailed."""
        return self._rest.mask() if self._begun and not self._free else None

    def accept(self, token: int) -> bool:
        """See Constraint. Raises ConstraintFailed."""
        if self._free:
            return False
        if self._begun:
            return self._rest.accept(token)
        self._tail += self._vocabulary.spell(token)
        at = self._tail.find(self._trigger)
        if at < 0:
            self._tail = self._tail[-len(self._trigger) + 1 :]
            return False
        self._begun = True
        more = self._tail[at + len(self._trigger) :]
        # The token that ended the trigger may have said more; what is no call then is left to be text.
        if more:
            self._free = not self._rest.takes(self._vocabulary.tokens.tokenize_bytes(more))
        return False


def _reason(matcher: llguidance.LLMatcher) -> str:
    """The compiler's own words, on one line, without its trace."""
    told = str(matcher.get_error()).replace("<non-verbose/>", "").split("\n\n", 1)[0]
    told = " ".join(told.split())
    if told.isidentifier():  # the name of a state alone: it found nothing that may be written
        return "no text keeps to it; look for a $ref that leads back to itself"
    return told if len(told) <= _SHOWN else told[: _SHOWN - 1] + "…"


_known: weakref.WeakValueDictionary[tuple[str, frozenset[int]], Vocabulary] = weakref.WeakValueDictionary()
_known_lock = threading.Lock()


def _shared(tokenizer: Tokenizer) -> Vocabulary:
    """The vocabulary of `tokenizer`: making one takes most of a second and tens of megabytes."""
    if tokenizer.spelling is None:
        raise Unconstrainable("this tokenizer's tokens have no bytes of their own")
    if not tokenizer.stop_ids:
        raise Unconstrainable("this tokenizer names no end token")
    key: Any = (tokenizer.digest, tokenizer.stop_ids)
    with _known_lock:
        known = _known.get(key)
        if known is None:
            known = _known[key] = Vocabulary(tokenizer.spelling, sorted(tokenizer.stop_ids))
        return known
