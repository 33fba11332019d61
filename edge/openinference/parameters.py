"""The parameters of an infer request, by name and kind. Unknown ones are refused by name.

A number may also come as text, since clients of the protocol's first edition can send no fractions. `priority` counts
as Triton has it, the smallest first, and is turned into Weir's, where higher goes first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from runtime import foreign_json
from wire.errors import InvalidRequest
from wire.messages import Constraints, Context, ResponseFormat, Sampling, TierConstraint
from wire.openinference.messages import Parameter, Parameters

_ROUTING: dict[str, type] = {
    "constraint": str,
    "max_risk": float,
    "session_id": str,
    "tenant": str,
    "site": str,
    "request_class": str,
    "value": float,
    "priority": int,  # as Triton has it, see _priority
    "subject": str,
    "idempotency_key": str,
    "timeout": int,  # microseconds, as Triton has it
}
_GENERATION: dict[str, type] = {
    "max_tokens": int,
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "seed": int,
    "presence_penalty": float,
    "frequency_penalty": float,
    "repetition_penalty": float,
    "stop": str,  # one sequence
    "stop_list": str,  # several, as a JSON list
    "json_schema": str,
    "system": str,
}
# What Triton's client adds to a request of a stream.
_STREAMING: dict[str, type] = {"triton_enable_empty_final_response": bool}
_INT32 = (1 << 31) - 1
_LEVELS = 8  # of priority above the usual, and as many below: more count no further (docs/engine.md)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the parameters of one request say, for every one of its elements."""

    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    response_format: ResponseFormat | None = None
    system: str = ""
    constraints: Constraints = field(default_factory=Constraints)
    context: Context = field(default_factory=Context)
    idempotency_key: str = ""
    timeout_s: float | None = None


def generation(given: Parameters) -> Asked:
    """Raises InvalidRequest naming the parameter at fault."""
    values = _checked(given, {**_ROUTING, **_GENERATION, **_STREAMING})
    schema = values.get("json_schema", "")
    return Asked(
        Sampling(
            max_tokens=_small(values, "max_tokens"),
            temperature=values.get("temperature"),
            top_p=values.get("top_p"),
            top_k=_small(values, "top_k"),
            seed=_seed(values),
            min_p=values.get("min_p"),
            presence_penalty=values.get("presence_penalty"),
            frequency_penalty=values.get("frequency_penalty"),
            repetition_penalty=values.get("repetition_penalty"),
        ),
        _stop(values),
        ResponseFormat("json_schema", schema) if schema else None,
        values.get("system", ""),
        *_routing(values),
    )


def classification(given: Parameters) -> Asked:
    """Raises InvalidRequest naming the parameter at fault."""
    constraints, context, key, timeout_s = _routing(_checked(given, {**_ROUTING, **_STREAMING}))
    return Asked(constraints=constraints, context=context, idempotency_key=key, timeout_s=timeout_s)


def refuse_all(given: Parameters, whose: str, but: Collection[str] = ()) -> None:
    """Raises InvalidRequest for any parameter but those."""
    for name in given:
        if name not in but:
            raise InvalidRequest(f"{whose}: parameter {name!r:.80} is not supported here; leave it out")


def _checked(given: Parameters, known: dict[str, type]) -> dict[str, Any]:
    refuse_all(given, "the request", known)
    return {name: _as(name, value, known[name]) for name, value in given.items()}


def _as(name: str, value: Parameter, kind: type) -> Parameter:
    if kind in (int, float) and isinstance(value, str):
        try:
            return float(value) if kind is float else int(value)
        except ValueError:
            raise InvalidRequest(f"parameter {name} is {value!r:.80}; give a number") from None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        words = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
        raise InvalidRequest(f"parameter {name} is {value!r:.80}; give {words[kind]}")
    return value


def _small(values: dict[str, Any], name: str) -> int | None:
    value: int | None = values.get(name)
    if value is not None and not -_INT32 <= value <= _INT32:
        raise InvalidRequest(f"parameter {name} is {value}; it must fit 32 bits")
    return value


def _seed(values: dict[str, Any]) -> int | None:
    seed: int | None = values.get("seed")
    if seed is not None and not 0 <= seed < 1 << 64:
        raise InvalidRequest(f"parameter seed is {seed}; it must lie between 0 and 2^64 - 1")
    return seed


def _priority(given: int) -> int:
    """Weir's priority for Triton's: 0 is the usual, 1 the highest, and each number after it a level lower."""
    if given < 0:
        raise InvalidRequest(f"parameter priority is {given}; 0 is the usual, 1 the highest, larger ones are lower")
    return 0 if given == 0 else max(_LEVELS + 1 - given, -_LEVELS)


def _stop(values: dict[str, Any]) -> tuple[str, ...]:
    one = (values["stop"],) if "stop" in values else ()
    if "stop_list" not in values:
        return one
    try:
        several = foreign_json.read(values["stop_list"])
    except foreign_json.NotJson:
        several = None
    if not isinstance(several, list) or not all(isinstance(entry, str) for entry in several):
        raise InvalidRequest('parameter stop_list must be a JSON list of texts, like ["\\n", "END"]')
    return (*one, *several)


def _routing(values: dict[str, Any]) -> tuple[Constraints, Context, str, float | None]:
    tier = values.get("constraint", "auto")
    if tier not in list(TierConstraint):
        raise InvalidRequest(f"parameter constraint is {tier!r:.80}; use {', '.join(TierConstraint)}")
    timeout = values.get("timeout")
    if timeout is not None and not 0 < timeout <= 86_400_000_000:
        raise InvalidRequest(f"parameter timeout is {timeout}; give microseconds above 0, at most a day")
    context = Context(
        values.get("session_id", ""),
        values.get("tenant", ""),
        values.get("site", ""),
        values.get("request_class", ""),
        values.get("value"),
        _priority(values.get("priority", 0)),
        values.get("subject", ""),
    )
    constraints = Constraints(TierConstraint(tier), values.get("max_risk"))
    return constraints, context, values.get("idempotency_key", ""), None if timeout is None else timeout / 1e6
