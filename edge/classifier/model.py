"""A classifier's release opened for serving: verified, loaded, with its tokenizer and what Describe says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from edge.classifier.config import ClassifierConfig
from edge.classifier.job import Served
from edge.engine.candidate import Candidate
from edge.engine.opening import described, here, opened, refusals
from release.folder import Release
from release.manifest import Labelling
from runtime.ort.classify import CLASSIFY, Encoded, TextEncoder
from runtime.ort.footprint import load_bytes
from runtime.ort.load_classifier import load_classifier
from runtime.tokenizer import Tokenizer, TooManyTokens
from wire.capabilities import CLASSIFY as CAN_CLASSIFY
from wire.classification import ClassifyRequest
from wire.description import ModelInfo
from wire.errors import ContextTooLong, InvalidRequest


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
        """The text as token ids, or those that were given. Raises ContextTooLong, InvalidRequest."""
        if request.input_ids:
            return self._as_given(request.input_ids, request.token_type_ids)
        try:
            row = self.encoder(request.text, request.text_pair)
        except TooManyTokens as error:
            raise ContextTooLong(
                f"the text has {error.count} tokens; this model takes {error.most}: shorten the text"
            ) from error
        if not row.ids:
            raise InvalidRequest("the text has no tokens; say something")
        return row

    def _as_given(self, ids: tuple[int, ...], types: tuple[int, ...]) -> Encoded:
        """Never cut, whatever the release says of texts: only who made the ids knows which of them may go."""
        most, vocabulary = self.encoder.most, self.encoder.vocabulary
        if len(ids) > most:
            raise ContextTooLong(f"input_ids has {len(ids)} tokens; this model takes {most}: send fewer")
        if (highest := max(ids)) >= vocabulary:
            raise InvalidRequest(
                f"input_ids has {highest} at position {ids.index(highest)}; this model's vocabulary ends at "
                f"{vocabulary - 1}: use the tokenizer of this release"
            )
        return Encoded(ids, types)


# Verifies a release for serving: `open_classifier`, or what stands in for it.
Opener = Callable[[ClassifierConfig, Path, int, Tokenizer | None], Candidate[Model]]


def open_classifier(
    config: ClassifierConfig, directory: Path, precision: int, known: Tokenizer | None = None
) -> Candidate[Model]:
    """Verifies a release and reads its tokenizer. Takes a while: not in the event loop.

    `known` is the tokenizer that serves meanwhile. Raises NotFound or PreconditionFailed.
    """
    release = opened(directory, precision, CLASSIFY)
    manifest = release.manifest
    with refusals():
        encoder = TextEncoder(Tokenizer.load(directory, known=known), manifest, config.context_length)
    # What a batch keeps between its layers, as a decoder's prefill of so many tokens would.
    needed = load_bytes(manifest, precision, slots=1, prefill_chunk=config.batch_tokens)
    return Candidate(release.id, precision, needed, partial(_load, config, release, precision, encoder))


def _capabilities(encoder: TextEncoder, takes_types: bool) -> tuple[str, ...]:
    pairs, types = ("text_pair",) if encoder.takes_pairs else (), ("token_type_ids",) if takes_types else ()
    return (CAN_CLASSIFY, "logits", *pairs, "input_ids", *types)


def _load(config: ClassifierConfig, release: Release, precision: int, encoder: TextEncoder) -> Model:
    manifest = release.manifest
    with refusals():
        loaded = load_classifier(release, precision, threads=config.threads, spin=config.spin)
    served = Served(loaded.session, release.id, precision, loaded.weight_digest)
    info = replace(
        described(release, precision, loaded.weight_digest, config.model),
        tasks=(CLASSIFY,),
        capabilities=_capabilities(encoder, loaded.session.takes_types),
        tokenizer_digest=encoder.tokenizer.digest,
        context_length=encoder.most,
        labels=manifest.labels,
        multi_label=manifest.labelling.multi_label,
    )
    return Model(release.path, served, encoder, manifest.labelling, info, loaded.load_ms, here(release))
