"""What a request needs of the model that answers it, in the words of ModelInfo.capabilities.

One table for every tier: a router asks whether a tier can answer, an engine refuses by name what it
cannot. A field that is not served is refused, never dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from wire.classification import ClassifyRequest
from wire.errors import NotSupported
from wire.messages import GenerateRequest, TierConstraint

# capability → whether a request needs it. What every model here can do (a greedy stream) has no line.
_NEEDED: dict[str, Callable[[GenerateRequest], bool]] = {
    "sample": lambda r: not r.sampling.greedy,
    "min_p": lambda r: bool(r.sampling.min_p) and not r.sampling.greedy,
    "penalties": lambda r: r.sampling.reshapes,
    "logprobs": lambda r: r.return_logprobs,
    "top_logprobs": lambda r: r.top_logprobs > 0,
    "json_schema": lambda r: r.response_format is not None and r.response_format.type in ("json_object", "json_schema"),
    "choice": lambda r: r.response_format is not None and r.response_format.type == "choice",
    "tools": lambda r: bool(r.tools) and r.tool_choice != "none",
    # A conversation with tool turns in it, whether or not more may be called.
    "tool_turns": lambda r: any(m.role == "tool" or m.tool_calls for m in r.messages),
}


CLASSIFY = "classify"
_CLASSIFY_NEEDED: dict[str, Callable[[ClassifyRequest], bool]] = {
    CLASSIFY: lambda _: True,
    "text_pair": lambda r: bool(r.text_pair),
    "logits": lambda r: r.return_logits,
    "input_ids": lambda r: bool(r.input_ids),
    "token_type_ids": lambda r: bool(r.token_type_ids),
}
# In the words of one model's own tokenizer: that another tier has the capability helps nobody.
OWN_WORDS = frozenset({"input_ids", "token_type_ids"})


def in_own_words(request: GenerateRequest) -> bool:
    """Whether it names token ids of the model that it was sent to, which mean other words to another tokenizer.

    Who allows the cloud alone means the cloud's model.
    """
    return bool(request.sampling.logit_bias) and request.constraints.tier is not TierConstraint.CLOUD_ONLY


def classify_needs(request: ClassifyRequest) -> frozenset[str]:
    """As `needs`, of a request to label a text."""
    return frozenset(name for name, needed in _CLASSIFY_NEEDED.items() if needed(request))


def needs(request: GenerateRequest) -> frozenset[str]:
    """The capabilities this request cannot do without."""
    return frozenset(name for name, needed in _NEEDED.items() if needed(request))


def demand_capable(request: GenerateRequest, capabilities: Collection[str], who: str) -> None:
    """Raises NotSupported, naming what of the request `who` does not serve."""
    _demand(needs(request), capabilities, who)


def demand_classifies(request: ClassifyRequest, capabilities: Collection[str], who: str) -> None:
    """Raises NotSupported, naming what of the request `who` does not serve."""
    _demand(classify_needs(request), capabilities, who)


def _demand(needed: frozenset[str], capabilities: Collection[str], who: str) -> None:
    missing = sorted(needed.difference(capabilities))
    if missing:
        raise NotSupported(f"{who} does not serve {', '.join(missing)}; leave it out or ask a tier that does")
