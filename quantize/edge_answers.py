"""What a release answers at one precision, with the signals an edge node would have seen.

Greedy, one sequence at a time, with the runtime the edge serves with; batching does not change its
logits. Signals count the same tokens as in service: the one that completes a stop sequence does, an
end token does not. Items that share the beginning of their prompts share its keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from quantize.errors import QuantizeError
from quantize.items import CalibrationItem
from release.folder import Release
from router.confidence import Signals
from runtime.ort.load import load_model
from runtime.ort.sampling import Sampler, SamplingParams
from runtime.ort.steps import Logits, StepModel
from runtime.text import TextStream
from runtime.tokenizer import Tokenizer

_CHUNK = 128


@dataclass(frozen=True, slots=True)
class EdgeAnswer:
    """An answer, the signals at its end, those after the first tokens, and those after every token."""

    text: str
    signals: Signals
    early: Signals
    trajectory: tuple[Signals, ...] = ()


def edge_answers(
    release: Release,
    precision: int,
    items: Sequence[CalibrationItem],
    *,
    prefix_tokens: int,
    threads: int,
    told: Callable[[], None],
) -> list[EdgeAnswer]:
    """Answers to `items`, in their order. `early` are the signals after `prefix_tokens` tokens, or at the end."""
    tokenizer = Tokenizer.load(release.path, release.manifest.eos_token_ids)
    prompts = [tokenizer.encode_chat(item.messages) for item in items]
    longest = max(len(prompt) + item.max_tokens for prompt, item in zip(prompts, items, strict=True))
    context = release.manifest.architecture.context_length
    if longest > context:
        raise QuantizeError(f"a calibration item needs {longest} tokens; the model's context holds {context}")
    model = load_model(release, precision, capacity=longest, threads=threads, prefill_chunk=_CHUNK).steps
    answers: dict[int, EdgeAnswer] = {}
    held: list[int] = []  # what the row's keys and values stand for
    for index in sorted(range(len(items)), key=lambda index: prompts[index]):
        prompt = prompts[index]
        shared = common_prefix(held, prompt)
        logits = _prefill(model, prompt, shared)
        answers[index] = _answer(
            _steps(model, logits, len(prompt), items[index], tokenizer), items[index], tokenizer, prefix_tokens
        )
        held = prompt
        told()
    return [answers[index] for index in range(len(items))]


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many first tokens are equal, leaving at least the last of `right` to compute."""
    most = min(len(left), len(right) - 1)
    return next((index for index in range(most) if left[index] != right[index]), max(most, 0))


def _prefill(model: StepModel, prompt: Sequence[int], start: int) -> Logits:
    for position in range(start, len(prompt), _CHUNK):
        logits = model.prefill(0, prompt[position : position + _CHUNK], position)
    return logits


def _answer(
    steps: Iterable[tuple[int, Signals]], item: CalibrationItem, tokenizer: Tokenizer, prefix_tokens: int
) -> EdgeAnswer:
    stream = TextStream(tokenizer.decode, item.stop)
    pieces: list[str] = []
    trajectory: list[Signals] = []
    signals = early = Signals()
    for token, after in steps:
        signals = after
        trajectory.append(after)
        early = signals if signals.tokens <= prefix_tokens else early
        piece = stream.push((token,))
        pieces.append(piece.text)
        if piece.stopped:
            break
    pieces.append(stream.finish().text)
    return EdgeAnswer("".join(pieces), signals, early, tuple(trajectory))


def _steps(
    model: StepModel, logits: Logits, length: int, item: CalibrationItem, tokenizer: Tokenizer
) -> Iterator[tuple[int, Signals]]:
    """Tokens as they are decoded, each with the signals after it."""
    sampler = Sampler(SamplingParams(), model.vocab_size)
    signals = Signals(prompt_tokens=length)
    for produced in range(item.max_tokens):
        choice = sampler.choose(logits)
        if choice.token in tokenizer.stop_ids:
            return
        signals = signals.then(choice.logprob, choice.entropy, choice.margin)
        yield choice.token, signals
        if produced + 1 < item.max_tokens:
            logits = model.decode([choice.token], [length + produced])[0]
