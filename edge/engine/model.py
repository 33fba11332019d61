"""A release opened for serving: verified, loaded, with its tokenizer and what Describe says of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from edge.engine import tools
from edge.engine.candidate import Candidate
from edge.engine.config import EngineConfig
from edge.engine.job import Served
from edge.engine.looking import memory_here
from edge.engine.opening import described, here, opened, refusals
from edge.engine.room import prefix_bytes
from release.folder import Release
from runtime.constrain import ConstraintMaker
from runtime.ort.footprint import load_bytes
from runtime.ort.load import load_model
from runtime.ort.session import GraphError
from runtime.ort.steady import kv_bytes_per_token
from runtime.tokenizer import TemplateError, Tokenizer, TooManyTokens
from wire.description import ModelInfo
from wire.errors import ContextTooLong, InvalidRequest
from wire.messages import GenerateRequest

_CAPABILITIES = (
    "stream", "sample", "min_p", "penalties", "logprobs", "top_logprobs", "signals", "choice", "score",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """One loaded release at one precision."""

    directory: Path
    served: Served
    tokenizer: Tokenizer
    info: ModelInfo
    load_ms: float
    here: Callable[[], tuple[int, ...]] | None = None  # the precisions that lie in the folder now
    constraints: ConstraintMaker | None = None  # None: its tokens cannot be held to a grammar

    @property
    def weights(self) -> object:
        """What the memory belongs to."""
        return self.served.steps

    def prompt_ids(self, request: GenerateRequest) -> list[int]:
        """The request's prompt as token ids. Runs long for a long one: not in the event loop.

        Raises ContextTooLong when not a single token of an answer would fit, InvalidRequest.
        """
        most = self.info.context_length - 1
        try:
            if request.messages:
                ids = self.tokenizer.encode_chat(tools.turns(request), most, tools.tools(request))
            else:
                ids = self.tokenizer.encode(request.prompt, most=most)
        except TooManyTokens as error:
            raise ContextTooLong(
                f"the prompt has {error.told} tokens; this model's context holds {self.info.context_length} "
                "with the answer: shorten the prompt"
            ) from error
        except TemplateError as error:
            raise InvalidRequest(str(error)) from error
        if not ids:
            raise InvalidRequest("the prompt has no tokens; say something")
        return ids

    def continuation_ids(
        self, prompt: GenerateRequest, texts: Sequence[str]
    ) -> tuple[list[int], tuple[tuple[int, ...], ...]]:
        """The prompt and what may follow it, each tokenized on its own. Not in the event loop.

        Raises ContextTooLong, InvalidRequest.
        """
        prompt_ids = self.prompt_ids(prompt)
        continuations = tuple(tuple(self.tokenizer.encode(text, special_tokens=False)) for text in texts)
        if not all(continuations):
            raise InvalidRequest("an option, or continuation, has no tokens in this model's vocabulary")
        longest, asked = max(map(len, continuations)), prompt.sampling.max_tokens
        if len(prompt_ids) + longest > self.info.context_length:
            raise ContextTooLong(
                f"the prompt has {len(prompt_ids)} tokens and the longest option or continuation {longest}; this "
                f"model's context holds {self.info.context_length}: shorten one of them"
            )
        if asked is not None and asked < longest:
            raise InvalidRequest(f"max_tokens is {asked} and the longest option has {longest} tokens; allow as many")
        return prompt_ids, continuations

    def answer_tokens(self, prompt_tokens: int, asked: int | None) -> int:
        """How many tokens the answer may have. Raises ContextTooLong, InvalidRequest."""
        room, most = self.info.context_length - prompt_tokens, self.info.max_output_tokens
        if asked is None:
            return min(room, most)
        if asked > most:
            raise InvalidRequest(f"max_tokens is {asked}; at most {most} are answered here")
        if asked > room:
            raise ContextTooLong(
                f"the prompt has {prompt_tokens} tokens and max_tokens is {asked}, together "
                f"{prompt_tokens + asked}; this model's context holds {self.info.context_length}: "
                f"shorten the prompt or ask for at most {room} tokens"
            )
        return asked


# Verifies a release for serving: `open_model`, or what stands in for it.
Opener = Callable[[EngineConfig, Path, int, Tokenizer | None], Candidate[Model]]


def open_model(
    config: EngineConfig, directory: Path, precision: int, known: Tokenizer | None = None
) -> Candidate[Model]:
    """Verifies a release and reads its tokenizer. Takes a while: not in the event loop.

    `known` is the tokenizer that serves meanwhile. Raises NotFound or PreconditionFailed.
    """
    release = opened(directory, precision)
    with refusals():
        tokenizer = Tokenizer.load(directory, release.manifest.eos_token_ids, known)
    needed = load_bytes(release.manifest, precision, slots=config.slots, prefill_chunk=config.prefill_chunk)
    return Candidate(release.id, precision, needed, partial(_load, config, release, precision, tokenizer))


def _load(config: EngineConfig, release: Release, precision: int, tokenizer: Tokenizer) -> Model:
    with refusals():
        loaded = load_model(
            release,
            precision,
            slots=config.slots,
            capacity=config.context_length,
            threads=config.threads,
            prefill_chunk=config.prefill_chunk,
            prefix_bytes=prefix_bytes(config.prefix_cache_bytes, memory_here(config)),
            spin=config.spin,
        )
        if tokenizer.vocab_size > loaded.steps.vocab_size:
            raise GraphError(
                f"the tokenizer knows {tokenizer.vocab_size} tokens and the model {loaded.steps.vocab_size}: "
                "they do not belong together"
            )
    served = Served(
        loaded.steps,
        tokenizer.decode,
        tokenizer.stop_ids,
        release.id,
        precision,
        loaded.weight_digest,
        tokenizer.token_bytes,
        kv_bytes_per_token(release.manifest),
    )
    constraints = tools.constraint_maker(tokenizer, loaded.steps.vocab_size)
    info = replace(
        described(release, precision, loaded.weight_digest, config.model),
        capabilities=(*_CAPABILITIES, *tools.capabilities(tokenizer, constraints)),
        tokenizer_digest=tokenizer.digest,
        context_length=loaded.steps.capacity,
        max_output_tokens=min(config.max_output_tokens, loaded.steps.capacity - 1),
    )
    return Model(release.path, served, tokenizer, info, loaded.load_ms, here(release), constraints)
