"""What an endpoint lists under /models, as a Description. Pure. A list of another shape tells nothing.

A model whose name cannot be shown as it is cannot be asked for by it either, and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge.openai_upstream.settings import OpenAiSettings
from edge.openai_upstream.words import words
from runtime import foreign_json
from wire.description import Description, ModelInfo
from wire.messages import Tier

_MOST_MODELS = 1024


def description(body: bytes, settings: OpenAiSettings, node: str) -> Description:
    """The endpoint as an upstream. With a model configured, that one, whether or not it is listed."""
    entries = _entries(body)
    known = {str(entry["id"]): entry for entry in entries}
    wanted = [known.get(settings.model, {"id": settings.model})] if settings.model else list(known.values())
    # Only a node says what it serves of each model, and only a node tries an upstream of its own.
    nodes = any(isinstance(entry.get("weir"), Mapping) for entry in entries)
    return Description(
        node, Tier.EDGE if nodes else Tier.CLOUD, models=tuple(_model(entry, settings) for entry in wanted)
    )


def only_model(told: Description | None) -> str:
    """The name of the one model there is; empty where there are several, or none is known."""
    models = told.models if told is not None else ()
    return models[0].name if len(models) == 1 else ""


def _entries(body: bytes) -> list[Mapping[str, Any]]:
    try:
        document = foreign_json.read_with_infinities(body)
    except foreign_json.NotJson:
        return []
    data = document.get("data") if isinstance(document, dict) else None
    entries = data if isinstance(data, list) else []
    sound: list[Mapping[str, Any]] = [
        entry for entry in entries if isinstance(entry, dict) and entry.get("id") and words(entry["id"]) == entry["id"]
    ]
    return sound[:_MOST_MODELS]


def _model(entry: Mapping[str, Any], settings: OpenAiSettings) -> ModelInfo:
    weir = entry.get("weir")
    told: Mapping[str, Any] = weir if isinstance(weir, Mapping) else {}
    listed = told.get("capabilities")
    capabilities = settings.serves
    if not settings.capabilities and isinstance(listed, list):
        # What this node has no words for over HTTP stays out, whatever the other one serves.
        capabilities = tuple(name for name in settings.serves if name in listed)
    return ModelInfo(
        entry["id"],
        release=words(told.get("release")),
        capabilities=capabilities,
    )
