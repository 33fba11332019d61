"""A classifier's release opened for serving: verified, loaded, with its tokenizer and what Describe says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from edge.classifier.batcher import Served
from edge.classifier.config import ClassifierConfig
from edge.engine.candidate import Candidate
from edge.engine.model import refusals
from release.errors import ReleaseError
from release.folder import Release, open_release, precisions_here
from release.manifest import PLANE_LO, Labelling, graph_name
from runtime.ort.classify import CLASSIFY, Encoded, TextEncoder
from runtime.ort.footprint import load_bytes
from runtime.ort.load_classifier import load_classifier
from runtime.tokenizer import Tokenizer, TooManyTokens
from wire.capabilities import CLASSIFY as CAN_CLASSIFY
from wire.classification import ClassifyRequest
from wire.errors import ContextTooLong, InvalidRequest, NotFound, PreconditionFailed
from wire.messages import ModelInfo


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """One loaded release at one precision."""

    directory: Path
    served: Served
    encoder: TextEncoder
    labelling: Labelling
    info: ModelInfo
    load_ms: float
    here: Callable[[], tuple[int, ...]] | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        return self.encoder.tokenizer

    @property
    def weights(self) -> object:
        """What the memory belongs to."""
        return self.served.labels

    def encoded(self, request: ClassifyRequest) -> Encoded:
        """The text as token ids. Raises ContextTooLong, InvalidRequest."""
        try:
            row = self.encoder(request.text, request.text_pair)
        except TooManyTokens as error:
            raise ContextTooLong(
                f"the text has {error.count} tokens; this model takes {error.most}: shorten the text"
            ) from error
        if not row.ids:
            raise InvalidRequest("the text has no tokens; say something")
        return row


def open_classifier(
    config: ClassifierConfig, directory: Path, precision: int, known: Tokenizer | None = None
) -> Candidate[Model]:
    """Verifies a release and reads its tokenizer. Takes a while: not in the event loop.

    `known` is the tokenizer that serves meanwhile. Raises NotFound or PreconditionFailed.
    """
    if not directory.is_dir():
        raise NotFound(f"there is no release folder {directory}")
    other = frozenset({graph_name(8), PLANE_LO}) if precision == 4 else frozenset({graph_name(4)})
    with refusals():
        release = open_release(directory, skip=other)
        manifest = release.manifest
        if manifest.task != CLASSIFY:
            raise PreconditionFailed(f"release {release.id} is made to {manifest.task}, not to classify")
        if precision not in release.precisions:
            have = ", ".join(map(str, release.precisions)) or "none"
            raise ReleaseError(f"release {release.id} has no {precision}-bit weights here (it has: {have})")
        encoder = TextEncoder(Tokenizer.load(directory, known=known), manifest, config.context_length)
    # What a batch keeps between its layers, as a decoder's prefill of so many tokens would.
    needed = load_bytes(manifest, precision, slots=1, prefill_chunk=config.batch_tokens)
    return Candidate(release.id, precision, needed, partial(_load, config, release, precision, encoder))


def _load(config: ClassifierConfig, release: Release, precision: int, encoder: TextEncoder) -> Model:
    manifest = release.manifest
    with refusals():
        loaded = load_classifier(release, precision, threads=config.threads, spin=config.spin)
    served = Served(loaded.session, release.id, precision, loaded.weight_digest)
    info = ModelInfo(
        name=config.model or manifest.name,
        release=release.id,
        tasks=(CLASSIFY,),
        capabilities=(CAN_CLASSIFY, "logits", *(("text_pair",) if encoder.takes_pairs else ())),
        tokenizer_digest=encoder.tokenizer.digest,
        precision=precision,
        weight_format=f"nested-{precision}",
        weight_digest=loaded.weight_digest,
        context_length=encoder.most,
        precisions_available=release.precisions,
        calibration_id=next((c.id for c in manifest.calibrations if c.precision == precision), ""),
        labels=manifest.labels,
        multi_label=manifest.labelling.multi_label,
    )
    # Not the release itself: it holds maps of its files.
    here = partial(precisions_here, release.path, manifest)
    return Model(release.path, served, encoder, manifest.labelling, info, loaded.load_ms, here)
