"""Which of the cloud's models a request means.

    request.model          hops    answered by
    served here            any     that model
    empty                  any     the default model
    not served here        > 0     the cloud model that the active release of that edge model refers to,
                                   else the default model: an escalation may name its edge's own model
    not served here        0       NotFound, naming what is served

The default model is `default_model` of [gateway] or, when that is empty, the only model there is. With
several models and no default an empty name is InvalidRequest, and an escalation NotFound.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from wire.errors import InvalidRequest, NotFound, Unavailable


def resolve_model(name: str, hops: int, served: Collection[str], default: str, references: Mapping[str, str]) -> str:
    """The model to ask for.

    `served` are the names known, whether their hosts are up or not; `references` map an edge model to
    the cloud model of its active release.
    """
    if name in served:
        return name
    if not served:
        raise Unavailable("no engine host has answered yet; try again soon")
    names = ", ".join(sorted(served))
    fallback = default or (next(iter(served)) if len(served) == 1 else "")
    if name and not hops:
        raise NotFound(f"no model {name!r} here; served are: {names}")
    if references.get(name) in served:
        return references[name]
    if not fallback:
        if name:
            raise NotFound(f"no model {name!r} here, and no default_model for escalations; served are: {names}")
        raise InvalidRequest(f"name a model; served are: {names}")
    if fallback not in served:
        raise Unavailable(f"the default model {fallback!r} is served by no host that has answered; known are: {names}")
    return fallback
