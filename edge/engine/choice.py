"""The likeliest of given options as an answer, and how sure the model was of it.

An option's weight is the sum of its tokens' log-probs, as the model would write it after the prompt; nothing is
taken off for length, nor for how likely the option is without the prompt. Options of which one goes on from
another are told apart by whether the text ends (edge.engine.scoring). The signals are those of one step whose
distribution is over the options alone, so that a confidence sees how clear the choice was; the log-probs that are
reported stay those of the model's own distribution.

Pure. Must not know: transports, rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from edge.engine.job import Ended, Job, Scored, Token
from router.confidence import Signals

# A lone option, and one that leaves no doubt, in nats.
_SURE = 20.0


def chosen(scored: Scored, job: Job, texts: Sequence[str]) -> tuple[list[Token], Ended]:
    """The tokens of the likeliest of `texts`, whose ids are the job's continuations, and the end of the answer."""
    totals = [math.fsum(logprobs) + end for logprobs, end in zip(scored.logprobs, scored.ends, strict=True)]
    best = max(range(len(totals)), key=totals.__getitem__)
    signals = _signals(totals, totals[best], len(job.prompt_ids))
    ids, logprobs = job.continuations[best], scored.logprobs[best]
    last = len(ids) - 1
    tokens = [
        Token(texts[best] if at == last else "", token, logprob, signals)
        for at, (token, logprob) in enumerate(zip(ids, logprobs, strict=True))
    ]
    ended = Ended(
        "stop",
        "",
        signals,
        scored.served,
        queue_ms=scored.queue_ms,
        prefill_ms=scored.prefill_ms,
        decode_ms=scored.decode_ms,
        cached_tokens=scored.cached_tokens,
    )
    return tokens, ended


def _signals(totals: Sequence[float], peak: float, prompt_tokens: int) -> Signals:
    weights = [math.exp(total - peak) for total in totals]
    log_total = math.log(math.fsum(weights))
    logprobs = [total - peak - log_total for total in totals]
    entropy = -math.fsum(math.exp(logprob) * logprob for logprob in logprobs)
    first, *others = sorted(totals, reverse=True)
    margin = min(first - others[0], _SURE) if others else _SURE
    return Signals(prompt_tokens=prompt_tokens).then(-log_total, max(entropy, 0.0), margin)
