"""Between the wire's words and the batcher's: settings in, deltas and signals out."""

from __future__ import annotations

from collections.abc import Callable

from edge.engine.job import Job, Scored, Token
from router import confidence
from runtime.ort.sampling import SamplingParams
from wire.errors import InvalidRequest
from wire.messages import Delta, GenerateRequest, Sampling, Signals, TokenLogprob
from wire.scoring import Scored as ScoredAnswer
from wire.scoring import ScoredContinuation

_SIGNAL_FIELDS = tuple(Signals.__dataclass_fields__)


def sampling_params(s: Sampling, vocab_size: int) -> SamplingParams:
    """How tokens are to be chosen. Raises InvalidRequest for a bias on a token there is not."""
    for token in s.logit_bias:
        if token >= vocab_size:
            raise InvalidRequest(f"logit_bias names token {token}; this model has tokens 0 to {vocab_size - 1}")
    return SamplingParams(
        temperature=s.temperature or 0.0,
        top_p=1.0 if s.top_p is None else s.top_p,
        top_k=s.top_k or 0,
        seed=s.seed,
        min_p=s.min_p or 0.0,
        presence_penalty=s.presence_penalty or 0.0,
        frequency_penalty=s.frequency_penalty or 0.0,
        repetition_penalty=1.0 if s.repetition_penalty is None else s.repetition_penalty,
        logit_bias=dict(s.logit_bias),
    )


def delta(token: Token, request: GenerateRequest, spell: Callable[[int], bytes]) -> Delta:
    """A token as far as the request asked for what belongs to it; `spell` gives a token's bytes."""
    signals = wire_signals(token.signals) if request.return_signals else None
    if not request.return_logprobs:
        return Delta(token.text, signals=signals)
    top = tuple(TokenLogprob(other, logprob, spell(other)) for other, logprob in token.top)
    return Delta(
        token.text,
        (token.token,),
        (token.logprob,),
        signals,
        (spell(token.token),),
        (top,) if request.top_logprobs else (),
    )


def choices_of(request: GenerateRequest) -> tuple[str, ...] | None:
    """The options of which the answer is to be the likeliest; None where it is to be written.

    Raises InvalidRequest for what does not go with a choice.
    """
    form = request.response_format
    if form is None or form.type != "choice":
        return None
    if request.tools and request.tool_choice != "none":
        raise InvalidRequest("response_format choice and tools are not served together; leave one out")
    if request.top_logprobs:
        raise InvalidRequest("top_logprobs does not go with response_format choice; ask Score for every option's")
    if (name := _reshaping(request)) is not None:
        raise InvalidRequest(
            f"{name} does not go with response_format choice, whose answer is the likeliest of its options as it "
            "stands; leave it out"
        )
    return form.choices


def _reshaping(request: GenerateRequest) -> str | None:
    """The first field that would make the answer another than the likeliest option. Settings of chance do not."""
    s = request.sampling
    given = {
        "stop": request.stop,
        "logit_bias": s.logit_bias,
        "presence_penalty": s.presence_penalty,
        "frequency_penalty": s.frequency_penalty,
        "repetition_penalty": s.repetition_penalty not in (None, 1.0),
    }
    return next((name for name, value in given.items() if value), None)


def scored(event: Scored, job: Job) -> ScoredAnswer:
    """The wire's answer to Score."""
    served = event.served
    continuations = zip(job.continuations, event.logprobs, strict=True)
    return ScoredAnswer(
        tuple(ScoredContinuation(ids, logprobs) for ids, logprobs in continuations),
        served.release,
        served.weight_digest,
        served.precision,
        len(job.prompt_ids),
    )


def wire_signals(s: confidence.Signals) -> Signals:
    return Signals(**{name: getattr(s, name) for name in _SIGNAL_FIELDS})
