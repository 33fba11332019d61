"""POST /v1/classify: a text in, its label out, with where it came from. Weir's own, in the manner of the OpenAI face.

    {"model": "intents", "text": "where is my parcel"}
    → {"id": …, "object": "classification", "model": "intents", "label": "parcel", "scores": [{"label", "score"}, …],
       "usage": {…}, "weir": {"tier", "reason", "release", …}}

`text` may be a list of up to 64 texts: then `data` holds one such answer each, or its own error. Unknown fields are
refused by name. Faults have OpenAI's shape. See docs/classification.md.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Annotated, Any

from fastapi import FastAPI, Request
from pydantic import Discriminator, Field, Tag, ValidationError
from starlette.responses import JSONResponse, Response

from edge.http import asking, errors
from edge.http.asking import Headers
from edge.http.body import read_json
from edge.http.calls import call_of, headers_of
from edge.http.fields import WORD, WORDS, FieldRefused, Strict, WeirOptions, member, refusal, without_neutral
from edge.http.provenance import field
from edge.http.settings import HttpSettings
from edge.http.sse import unless_gone
from wire.classification import Classified, Classifies, ClassifyRequest
from wire.errors import InvalidRequest, WeirError
from wire.service import Call

MOST_TEXTS = 64
_Text = Annotated[str, Field(max_length=8 << 20)]
_TextList = Annotated[list[_Text], Field(min_length=1, max_length=MOST_TEXTS)]


class ClassifyBody(Strict):
    """What may be asked."""

    model: str = ""
    text: Annotated[Annotated[_Text, Tag(WORD)] | Annotated[_TextList, Tag(WORDS)], Discriminator(member)]
    text_pair: _Text = ""
    top_labels: int = Field(0, ge=0, le=(1 << 31) - 1)
    return_logits: bool = False
    weir: WeirOptions = Field(default_factory=WeirOptions)


def add_classify(app: FastAPI, service: Classifies, settings: HttpSettings) -> None:
    """Adds the route to a node's application."""

    async def classify(request: Request) -> Response:
        body = _parsed(await read_json(request, settings.max_body_bytes, settings.default_deadline_s))
        call, headers = call_of(request, settings, body.weir.deadline_ms), headers_of(request)
        if isinstance(body.text, str):
            asked = _request(body, body.text, headers, "")
            answer = await unless_gone(service.classify(asked, call), request.receive)
            return JSONResponse(_document(answer, body.model), headers=_headers(answer))
        requests = [_request(body, text, headers, f"-{place}") for place, text in enumerate(body.text)]
        answers = await unless_gone(_all(service, requests, call), request.receive)
        data = [a if isinstance(a, dict) else _document(a, body.model) for a in answers]
        return JSONResponse({"object": "list", "model": body.model, "data": data})

    app.add_api_route("/v1/classify", classify, methods=["POST"], response_model=None)


async def _all(service: Classifies, requests: list[ClassifyRequest], call: Call) -> list[Classified | dict[str, Any]]:
    """The answer to each, in their order; a text that fails does so alone."""

    async def one(request: ClassifyRequest) -> Classified | dict[str, Any]:
        try:
            return await service.classify(request, call)
        except WeirError as error:
            return errors.body(error)

    return list(await asyncio.gather(*map(one, requests)))


def _parsed(document: Any) -> ClassifyBody:
    if not isinstance(document, dict):
        raise InvalidRequest("the body must be a JSON object")
    try:
        body = ClassifyBody.model_validate(without_neutral(document, {}))
    except ValidationError as error:
        raise refusal(error) from error
    if body.weir.commit_rule:
        where = "weir.commit_rule"
        raise FieldRefused(f"{where} goes with text that is written; leave it out", where, "unsupported_parameter")
    return body


def _request(body: ClassifyBody, text: str, headers: Headers, suffix: str) -> ClassifyRequest:
    key = body.weir.idempotency_key or headers.idempotency_key
    return ClassifyRequest(
        model=body.model,
        text=text,
        text_pair=body.text_pair,
        constraints=asking.constraints(body.weir, headers),
        context=asking.context(body.weir),
        request_id=f"cls-{uuid.uuid4().hex}",
        idempotency_key=f"{key}{suffix}" if key else "",
        hops=headers.hops,
        top_labels=body.top_labels,
        return_logits=body.return_logits,
    )


def _document(answer: Classified, model: str) -> dict[str, Any]:
    document: dict[str, Any] = {
        "id": answer.request_id,
        "object": "classification",
        "model": model or answer.release.partition("@")[0],
        "label": answer.label,
        "scores": [{"label": score.label, "score": score.score} for score in answer.scores],
    }
    if answer.multi_label:
        document["labels"] = list(answer.labels)
    if answer.logits:
        document["logits"] = list(answer.logits)
    document["usage"] = {"prompt_tokens": answer.tokens, "total_tokens": answer.tokens}
    document["weir"] = {
        "tier": answer.tier,
        "reason": answer.reason,
        "release": answer.release,
        "precision": answer.precision,
        "weight_format": answer.weight_format,
        "weight_digest": answer.weight_digest,
        "confidence": answer.confidence,
        "threshold": answer.threshold,
        "degraded": answer.degraded,
        "wanted_reason": answer.wanted_reason,
        "timings_ms": dict(answer.timings_ms),
        "hops": answer.hops,
        "node": answer.node,
    }
    return document


def _headers(answer: Classified) -> dict[str, str]:
    return {"x-weir-tier": answer.tier, "x-weir-reason": answer.reason, "x-weir-release": field(answer.release)}
