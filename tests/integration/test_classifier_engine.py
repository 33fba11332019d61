"""A classifying engine as a process: right labels in any company, bad input, a switch beside, a clean end."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge.openinference.face import NodeFace
from quantize.classifier.build import build_ready_made
from release.folder import open_release
from release.listing import read_manifest
from release.manifest import Labelling
from runtime.ort.classify import ClassifierModel, Encoded, TextEncoder
from runtime.ort.load_classifier import load_classifier
from runtime.tokenizer import Tokenizer
from tests.fakes.inference import FakeInference
from tests.integration.classifier_process import WORDS, altered, classifier, tiny_classifier
from tests.integration.engine_process import call
from tests.models import tiny_onnx_classifier
from wire.classification import Classified, ClassifyRequest
from wire.errors import (
    Conflict,
    ContextTooLong,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    NotSupported,
    TooLarge,
    Unavailable,
)
from wire.messages import GenerateRequest, Tier
from wire.openinference.messages import InferRequest
from wire.openinference.tensors import Tensor

TEXTS = [" ".join((words * 3)[:count]) for words in WORDS.values() for count in range(1, 25, 2)]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_classifier(tmp_path_factory.mktemp("classifier"))


async def test_every_text_gets_its_label_whatever_shares_its_batch(release: Path) -> None:
    expected = ClassifierModel(open_release(release), 8).scores(TEXTS)
    async with classifier(release) as engine:
        described = (await engine.inference.describe(call())).models[0]
        assert described.tasks == ("classify",)
        assert described.labels == ("parcel", "refund", "room")
        assert (described.precision, described.multi_label) == (8, False)
        requests = [ClassifyRequest(text=text, return_logits=True, request_id=text) for text in TEXTS]
        answers = await asyncio.gather(*(engine.inference.classify(request, call()) for request in requests))
        for text, answer, row in zip(TEXTS, answers, expected, strict=True):
            assert answer.request_id == text
            found = {score.label: score.score for score in answer.scores}
            assert np.abs(np.array([found[label] for label in described.labels]) - row).max() < 1e-3
            assert answer.label == answer.scores[0].label == described.labels[int(row.argmax())]
            assert answer.weight_digest == described.weight_digest
            assert len(answer.logits) == 3
        status = await engine.status()
        assert 1 < status.decode_steps < len(TEXTS)  # batches, of several texts
        assert (status.active, status.queued) == (0, 0)
        few = await engine.inference.classify(ClassifyRequest(text=TEXTS[0], top_labels=1), call())
        assert (len(few.scores), few.logits) == (1, ())


async def test_bad_input_is_refused_by_name_and_disturbs_nobody(release: Path) -> None:
    async with classifier(release, context_length=32) as engine:
        bad = {
            InvalidRequest: ClassifyRequest(text="  "),
            NotFound: ClassifyRequest(model="other", text="a"),
            NotSupported: ClassifyRequest(text="a", text_pair="b"),
            TooLarge: ClassifyRequest(text="x" * (2 << 20)),
        }
        outcomes = await asyncio.gather(
            *(engine.inference.classify(request, call()) for request in bad.values()),
            engine.inference.classify(ClassifyRequest(text="where is my parcel"), call()),
            return_exceptions=True,
        )
        for kind, outcome in zip(bad, outcomes, strict=False):
            assert type(outcome) is kind, outcome
        assert not isinstance(outcomes[-1], BaseException)
        with pytest.raises(NotSupported, match="writes none"):
            async for _ in engine.inference.generate(GenerateRequest(prompt="a"), call()):
                pass
        with pytest.raises(DeadlineExceeded):
            await engine.inference.classify(ClassifyRequest(text="a"), call(0.0))


async def test_token_ids_get_what_their_text_gets(release: Path) -> None:
    tokenizer, manifest = Tokenizer.load(release), read_manifest(release)
    assert manifest.architecture.vocabulary == tokenizer.id_count
    async with classifier(release) as engine:
        described = (await engine.inference.describe(call())).models[0]
        assert {"input_ids"} == {"input_ids", "token_type_ids"} & set(described.capabilities)

        async def asked(**given: object) -> Classified:
            return await engine.inference.classify(ClassifyRequest(return_logits=True, **given), call())  # type: ignore[arg-type]

        encode = TextEncoder(tokenizer, manifest)  # cuts the longest as the release does
        ids = [tuple(encode(text).ids) for text in TEXTS]
        alone = [(await asked(text=text), await asked(input_ids=row)) for text, row in zip(TEXTS, ids, strict=True)]
        for text, row in alone:  # each in a batch of its own: the very same numbers
            assert (text.logits, text.scores, text.tokens) == (row.logits, row.scores, row.tokens)
        together = await asyncio.gather(*(asked(input_ids=row) for row in ids))
        for (_, row), other in zip(alone, together, strict=True):
            assert np.abs(np.array(row.logits) - np.array(other.logits)).max() < 1e-3
        assert len({row.label for _, row in alone}) > 1


async def test_ids_that_the_model_cannot_take_are_refused_by_name_and_disturb_nobody(
    release: Path, tmp_path: Path
) -> None:
    altered(release, tmp_path / "cut", "2.0.1", labelling=Labelling(truncates=True))  # texts are cut, ids are not
    vocabulary = read_manifest(release).architecture.vocabulary
    bad: list[tuple[type[Exception], str, dict[str, object]]] = [
        (InvalidRequest, f"input_ids has {vocabulary} at position 1", {"input_ids": (5, vocabulary, 5)}),
        (InvalidRequest, "input_ids has -1 at position 0", {"input_ids": (-1, 5)}),
        (ContextTooLong, "input_ids has 33 tokens; this model takes 32", {"input_ids": (5,) * 33}),
        (NotSupported, "token_type_ids", {"input_ids": (5, 6), "token_type_ids": (0, 1)}),
        (InvalidRequest, "not both", {"text": "a", "input_ids": (5,)}),
        (InvalidRequest, "text is empty", {}),
    ]
    async with classifier(tmp_path / "cut", context_length=32) as engine:
        most = ClassifyRequest(input_ids=(vocabulary - 1, *(5,) * 31))
        asking = [ClassifyRequest(**given) for _, _, given in bad]  # type: ignore[arg-type]
        work = (
            engine.inference.classify(request, call()) for pair in ((one, most) for one in asking) for request in pair
        )
        outcomes = await asyncio.gather(*work, return_exceptions=True)
        for (kind, words, _), outcome in zip(bad, outcomes[::2], strict=True):
            assert type(outcome) is kind and words in str(outcome), outcome
        assert all(isinstance(outcome, Classified) and outcome.tokens == 32 for outcome in outcomes[1::2])


async def test_types_of_tokens_are_taken_as_they_are(tmp_path: Path) -> None:
    source = tiny_onnx_classifier(tmp_path / "source", types=True)
    assert build_ready_made(source, tmp_path / "release", name="pairs").architecture.vocabulary == 0  # nobody says
    tokenizer = Tokenizer.load(tmp_path / "release")
    ids, types = tuple(tokenizer.encode("where is my parcel")), (0, 0, 1, 1)
    types += (1,) * (len(ids) - len(types))
    async with classifier(tmp_path / "release") as engine:
        described = (await engine.inference.describe(call())).models[0]
        assert {"input_ids", "token_type_ids"} <= set(described.capabilities)

        async def logits(**given: object) -> tuple[float, ...]:
            request = ClassifyRequest(return_logits=True, **given)  # type: ignore[arg-type]
            return (await engine.inference.classify(request, call())).logits

        session = load_classifier(open_release(tmp_path / "release"), 8).session
        for given in ((), (0,) * len(ids), types):
            found = await logits(input_ids=ids, token_type_ids=given)
            assert found == tuple(map(float, session.run([Encoded(ids, given)])[0]))
        assert await logits(input_ids=ids) == await logits(text="where is my parcel")
        assert await logits(input_ids=ids) != await logits(input_ids=ids, token_type_ids=types)
        with pytest.raises(InvalidRequest, match=f"input_ids has {tokenizer.id_count} at position 0"):
            await logits(input_ids=(tokenizer.id_count,))


async def test_what_is_too_long_is_cut_only_where_the_release_says_so(release: Path, tmp_path: Path) -> None:
    long = "parcel " * 200
    altered(release, tmp_path / "whole", "2.0.0", labelling=Labelling(truncates=False))
    async with classifier(tmp_path / "whole") as engine:
        with pytest.raises(ContextTooLong, match="shorten the text"):
            await engine.inference.classify(ClassifyRequest(text=long), call())
    altered(release, tmp_path / "cut", "2.0.1", labelling=Labelling(truncates=True))
    async with classifier(tmp_path / "cut") as engine:
        answer = await engine.inference.classify(ClassifyRequest(text=long), call())
        assert answer.tokens == read_manifest(release).architecture.context_length


async def test_labels_that_do_not_exclude_each_other(release: Path, tmp_path: Path) -> None:
    altered(release, tmp_path / "many", "2.0.0", labelling=Labelling(multi_label=True, thresholds=(0.01, 0.5, 0.999)))
    async with classifier(tmp_path / "many") as engine:
        described = (await engine.inference.describe(call())).models[0]
        assert described.multi_label
        answer = await engine.inference.classify(ClassifyRequest(text="where is my parcel", return_logits=True), call())
        own = dict(zip(described.labels, 1 / (1 + np.exp(-np.array(answer.logits))), strict=True))
        assert {score.label: pytest.approx(score.score) for score in answer.scores} == own
        least = dict(zip(described.labels, (0.01, 0.5, 0.999), strict=True))
        assert set(answer.labels) == {label for label, share in own.items() if share >= least[label]}


async def test_precisions_change_beside_without_a_failed_text(release: Path) -> None:
    async with classifier(release) as engine:
        done = asyncio.Event()
        precisions: set[int] = set()

        async def ask() -> int:
            asked = 0
            while not done.is_set():
                answer = await engine.inference.classify(ClassifyRequest(text=TEXTS[asked % len(TEXTS)]), call())
                precisions.add(answer.precision)
                asked += 1
            return asked

        asking = [asyncio.create_task(ask()) for _ in range(4)]
        for bits in (4, 8, 4):
            await asyncio.sleep(0.1)
            activation = await engine.control.activate("", bits, call())
            assert (activation.precision, activation.pause_ms) == (bits, 0.0)
        await asyncio.sleep(0.05)
        done.set()
        assert sum(await asyncio.gather(*asking)) > 10
        assert precisions == {4, 8}
        assert (await engine.status()).precision == 4


async def test_ids_of_a_release_are_not_labelled_by_the_one_that_came_into_force_meanwhile(
    release: Path, tmp_path: Path
) -> None:
    ids = tuple(Tokenizer.load(release).encode(TEXTS[0]))
    second = altered(release, tmp_path / "second", "2.0.0")
    tensor = Tensor("input_ids", "INT64", (1, len(ids)), ids)
    of_ids = InferRequest("intents", "1.0.0", inputs=(tensor,), input_parameters=({},))
    of_text = replace(of_ids, inputs=(Tensor("text", "BYTES", (1,), (TEXTS[0].encode(),)),))
    async with classifier(release) as engine:
        served = (await engine.inference.describe(call())).models[0]
        # What a front goes by until it has asked the engine again.
        node = NodeFace(FakeInference(Tier.EDGE, model=served), classifies=engine.inference)
        assert (await node.infer(of_ids, call())).version == "1.0.0"
        await engine.control.activate(str(tmp_path / "second"), 8, call())
        with pytest.raises(Conflict, match=f"changed to {re.escape(second.id)} meanwhile"):
            await node.infer(of_ids, call())
        for asked in (of_text, replace(of_ids, version="")):
            answer = await node.infer(asked, call())
            assert answer.parameters["weir_release"] == f"intents@{answer.version}" == second.id


async def test_it_drains_and_ends_cleanly(release: Path) -> None:
    async with classifier(release) as engine:
        await engine.inference.classify(ClassifyRequest(text="a"), call())
        assert await engine.control.drain(call()) == 0
        with pytest.raises(Unavailable):
            await engine.inference.classify(ClassifyRequest(text="a"), call())
        engine.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert await engine.exit_code() == 0
        assert time.monotonic() - began < 5
