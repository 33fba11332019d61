"""Asks a node with the official `tritonclient`; run by an environment that knows nothing of Weir.

Its `inference.*` messages clash with ours in one process. Prints JSON.
Usage: triton_client.py TASK GRPC HTTP MODEL [ROWS].
"""

from __future__ import annotations

import json
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http


def _texts(kind: Any, name: str, *texts: str) -> Any:
    entry = kind.InferInput(name, [len(texts)], "BYTES")
    entry.set_data_from_numpy(np.array([text.encode() for text in texts], dtype=object))
    return entry


def _array(found: Any, name: str) -> Any:
    values = found.as_numpy(name)
    return [value.decode() if isinstance(value, bytes) else value for value in values.tolist()]


def _clients(grpc_target: str, http_target: str) -> list[tuple[str, Any, Any]]:
    return [
        ("grpc", tritonclient.grpc, tritonclient.grpc.InferenceServerClient(grpc_target)),
        ("http", tritonclient.http, tritonclient.http.InferenceServerClient(http_target)),
    ]


def _status(client: Any, kind: str, model: str) -> dict[str, Any]:
    extra = {"as_json": True} if kind == "grpc" else {}
    metadata = client.get_model_metadata(model, **extra)
    return {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model_ready": client.is_model_ready(model),
        "other_ready": _ready_or_not(client, "no-such-model"),
        "server": client.get_server_metadata(**extra)["name"],
        "inputs": [entry["name"] for entry in metadata["inputs"]],
        "versions": metadata["versions"],
    }


def _ready_or_not(client: Any, model: str) -> bool:
    try:
        return bool(client.is_model_ready(model))
    except tritonclient.grpc.InferenceServerException:
        return False


def generate(grpc_target: str, http_target: str, model: str) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for kind, module, client in _clients(grpc_target, http_target):
        given = [_texts(module, "text", "Where is my parcel?", "Cancel my order.")]
        parameters = {"max_tokens": 6, "temperature": 0.0, "seed": 7}
        whole = client.infer(model, given, request_id="r1", parameters=parameters)
        wanted = [module.InferRequestedOutput("text"), module.InferRequestedOutput("completion_tokens")]
        some = client.infer(model, given, outputs=wanted, timeout=20_000_000, parameters=parameters)
        response = whole.get_response(**({"as_json": True} if kind == "grpc" else {}))
        try:
            client.infer(model, given, parameters={"beam_width": 4})
            refused = ""
        except module.InferenceServerException as error:
            refused = str(error)
        told[kind] = {
            **_status(client, kind, model),
            "text": _array(whole, "text"),
            "again": _array(some, "text"),
            "tokens": _array(some, "completion_tokens"),
            "tier": _array(whole, "tier"),
            "degraded": _array(whole, "degraded"),
            "unasked": some.as_numpy("tier") is None,
            "id": response["id"],
            "parameters": sorted(response["parameters"]),
            "refused": refused,
        }
    told["long"], told["stream"] = _stream(grpc_target, model)
    return told


def _stream(target: str, model: str) -> tuple[str, list[str]]:
    """A longer answer as a whole, and the same one in its pieces."""
    pieces: list[str] = []
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(target) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        given = [_texts(tritonclient.grpc, "text", "Where is my parcel?")]
        parameters = {"max_tokens": 40, "temperature": 0.0}
        whole = _array(client.infer(model, given, parameters=parameters), "text")[0]
        client.async_stream_infer(model, given, enable_empty_final_response=True, parameters=parameters)
        while True:
            result, error = answers.get(timeout=30)
            if error is not None:
                raise error
            pieces += _array(result, "text")
            if result.get_response().parameters["triton_final_response"].bool_param:
                client.stop_stream()
                return whole, pieces


def classify(grpc_target: str, http_target: str, model: str) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for kind, module, client in _clients(grpc_target, http_target):
        found = client.infer(model, [_texts(module, "text", "hello you", "hi")], priority=2)
        wanted = [module.InferRequestedOutput("logits")]
        logits = client.infer(model, [_texts(module, "text", "hi")], outputs=wanted).as_numpy("logits")
        scores = found.as_numpy("scores")
        told[kind] = {
            **_status(client, kind, model),
            "label": _array(found, "label"),
            "classes": _array(found, "classes"),
            "scores": [[round(score, 3) for score in row] for row in scores.tolist()],
            "kinds": [str(scores.dtype), str(found.as_numpy("holds").dtype)],
            "logits": logits.tolist(),
        }
    return told


def _integers(kind: Any, name: str, rows: list[list[int]], binary: bool) -> Any:
    entry = kind.InferInput(name, [len(rows), len(rows[0])], "INT64")
    entry.set_data_from_numpy(np.array(rows, dtype=np.int64), **({} if binary else {"binary_data": False}))
    return entry


def rows(grpc_target: str, http_target: str, model: str, given: str) -> dict[str, Any]:
    """`given` is JSON: `texts`, and `tensors`, the same as rows of integers by name."""
    texts, tensors = (json.loads(given)[name] for name in ("texts", "tensors"))
    told: dict[str, Any] = {}
    for kind, module, client in _clients(grpc_target, http_target):
        names = ("label", "scores", "tier", "reason", "degraded", "confidence")
        forms = {"text": [_texts(module, "text", *texts)]}
        for binary in (True, False) if kind == "http" else (True,):
            forms[f"rows_{binary}"] = [_integers(module, name, values, binary) for name, values in tensors.items()]
        wanted = [module.InferRequestedOutput(name) for name in names]
        found = {form: client.infer(model, inputs, outputs=wanted) for form, inputs in forms.items()}
        far = [_integers(module, "input_ids", [[0, 1 << 30]], True)]
        told[kind] = {
            **_status(client, kind, model),
            **{form: {name: _array(answer, name) for name in names} for form, answer in found.items()},
            "unknown": _refusal(module, lambda far=far, client=client: client.infer(model, far)),
            "both": _refusal(
                module, lambda far=far, client=client, more=forms["text"]: client.infer(model, far + more)
            ),
        }
    return told


def _refusal(module: Any, ask: Any) -> str:
    try:
        ask()
    except module.InferenceServerException as error:
        return str(error)
    return ""


if __name__ == "__main__":
    task, *given = sys.argv[1:]
    json.dump({"generate": generate, "classify": classify, "rows": rows}[task](*given), sys.stdout)
