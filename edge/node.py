"""The whole node as one service: its models' answers, and a description of what stands here.

A request names its model; one that names none gets the node's default, or the only model that does what it asks.
Every model is ready or not by itself: the node is ready while one of them is, and says which are not.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

from edge.cascade import Cascade
from edge.classify_cascade import ClassifyCascade
from edge.judge import CascadeSettings
from edge.local import LocalState
from edge.releases import CLASSIFY, GENERATE
from edge.upstream import UpstreamState
from runtime.version import weir_version
from wire.capabilities import OWN_WORDS
from wire.classification import Classified, ClassifyRequest
from wire.description import Description, Limits, ModelInfo
from wire.errors import InvalidRequest, NotFound, Unavailable
from wire.messages import GenerateEvent, GenerateRequest, Tier
from wire.scoring import Scored, ScoreRequest, Scores
from wire.service import Call
from wire.validate import check_score


class NodeModel:
    """One model of a node, as far as requests are concerned."""

    def __init__(
        self,
        settings: CascadeSettings,
        local: LocalState,
        upstream: UpstreamState,
        cascade: Cascade,
        *,
        classify: ClassifyCascade | None = None,
        scores: Scores | None = None,
        updating: Callable[[], str] = lambda: "",
    ) -> None:
        """`updating` says in a few words what is being done for an engine that has nothing to serve."""
        self.settings, self.local, self.upstream = settings, local, upstream
        self.cascade, self.classify, self.scores = cascade, classify, scores
        self._updating = updating

    @property
    def name(self) -> str:
        """What it is called here; empty while nobody knows."""
        served = self.local.served
        return self.settings.model or (served.name if served is not None else "")

    @property
    def ready(self) -> bool:
        """Whether requests for it can be answered now, by whichever tier."""
        return self.local.available or self._upstream_answers()

    @property
    def why_not(self) -> str:
        """Empty when it is ready."""
        told = "; ".join(filter(None, (self.local.detail, self._updating())))
        return "" if self.ready else f"no engine ({told}) and no upstream"

    @property
    def info(self) -> ModelInfo | None:
        """What is served, and what a request for it may need: what its engine can do or the upstream is there for."""
        served, view = self.local.served, self.upstream.view(1)
        if served is None:
            return None
        above = view.capabilities or frozenset() if view.configured else frozenset()
        more = above.difference(served.capabilities, OWN_WORDS)
        return replace(served, capabilities=(*served.capabilities, *sorted(more)))

    def does(self, task: str) -> bool:
        """False only where its engine said that it does something else."""
        return self.local.served is None or task in self.local.served.tasks

    def _upstream_answers(self) -> bool:
        view = self.upstream.view(1)
        return view.configured and view.admits and self.upstream.heard


class EdgeNode:
    """Satisfies InferenceService, Classifies and Scores of wire."""

    def __init__(self, models: Sequence[NodeModel], default: str = "") -> None:
        """`default` is the model of requests that name none; empty: see `model`."""
        self._models, self._default = tuple(models), default

    def generate(self, request: GenerateRequest, call: Call) -> AsyncGenerator[GenerateEvent, None]:
        """See InferenceService."""
        return self.model(request.model, GENERATE).cascade.generate(request, call)

    async def classify(self, request: ClassifyRequest, call: Call) -> Classified:
        """See Classifies."""
        model = self.model(request.model, CLASSIFY)
        if model.classify is None:
            raise InvalidRequest(f"{model.name!r} labels no texts")
        return await model.classify.classify(request, call)

    async def score(self, request: ScoreRequest, call: Call) -> Scored:
        """See Scores. This node's own model is asked: what another model thinks would be no answer."""
        model = self.model(request.model, GENERATE)
        check_score(request, model.settings.limits)
        if model.scores is None:
            raise InvalidRequest(f"{model.name!r} scores no texts")
        return await model.scores.score(replace(request, model=""), call)

    @property
    def names(self) -> tuple[str, ...]:
        """The models' names, as far as they are known."""
        return tuple(model.name for model in self._models if model.name)

    def model(self, name: str, task: str) -> NodeModel:
        """Whom a request for `name` (empty: none named) is for. Raises NotFound, InvalidRequest."""
        if name:
            # A model alone may be asked for before its name is known.
            known = [model for model in self._models if model.name in (name, "")]
            if not known:
                raise NotFound(f"no model {name!r} here; this node serves {', '.join(map(repr, self.names))}")
            found = known[0]
        else:
            found = self._unnamed(task)
        if not found.does(task):
            raise InvalidRequest(_OTHERWISE[task].format(name=found.name))
        return found

    def model_ready(self, name: str) -> bool:
        """Whether the model of that name can answer now. Raises NotFound."""
        for model in self._models:
            if model.name == name:
                return model.ready
        raise NotFound(f"no model {name!r} here; this node serves {', '.join(map(repr, self.names))}")

    @property
    def readiness(self) -> dict[str, bool]:
        """Of every model by name."""
        return {model.name: model.ready for model in self._models}

    @property
    def ready(self) -> bool:
        """Whether requests for one of the models, at least, can be answered now, by whichever tier."""
        return any(model.ready for model in self._models)

    async def describe(self, _call: Call, probe_bytes: int = 0) -> Description:
        """See InferenceService. Answered from what is known, without asking anybody."""
        first = self._models[0]
        settings, above = first.settings, first.upstream.description
        return Description(
            settings.node,
            Tier.EDGE,
            version=weir_version(),
            models=tuple(self._infos()),
            limits=Limits(
                settings.limits.max_prompt_bytes, settings.max_requests, settings.max_requests, settings.limits.max_hops
            ),
            active_releases={} if above is None else above.active_releases,
            ready=self.ready,
            not_ready_reason="; ".join(self._not_ready()),
            padding=b"\0" * probe_bytes,
        )

    def _infos(self) -> list[ModelInfo]:
        """The default first, which is what a caller that knows of one model only takes."""
        ordered = sorted(self._models, key=lambda model: model.name != self._default)
        return [info for model in ordered if (info := model.info) is not None]

    def _not_ready(self) -> list[str]:
        several = len(self._models) > 1
        return [
            f"{model.name}: {model.why_not}" if several else model.why_not for model in self._models if not model.ready
        ]

    def _unnamed(self, task: str) -> NodeModel:
        fitting = [model for model in self._models if model.does(task)]
        for model in fitting:
            if model.name == self._default and self._default:
                return model
        if len(self._models) == 1:
            return self._models[0]
        if len(fitting) == 1:
            return fitting[0]
        names = ", ".join(repr(model.name) for model in fitting) or "none that does this"
        raise InvalidRequest(f"name a model; this node serves {names}")


_OTHERWISE = {
    GENERATE: "{name!r} labels texts and writes none; ask it with Classify (POST /v1/classify), or ask another model",
    CLASSIFY: "{name!r} writes text and labels none; ask it with Generate, or ask another model",
}


class NoUpstream:
    """Stands where no upstream is configured; the router never sends anything here."""

    async def generate(self, _request: GenerateRequest, _call: Call) -> AsyncGenerator[GenerateEvent, None]:
        nothing: tuple[GenerateEvent, ...] = ()
        for event in nothing:  # makes this an async generator
            yield event
        raise Unavailable("this node has no upstream; set [edge] upstream")

    async def classify(self, _request: ClassifyRequest, _call: Call) -> Classified:
        raise Unavailable("this node has no upstream; set [edge] upstream")

    async def describe(self, _call: Call, _probe_bytes: int = 0) -> Description:
        raise Unavailable("this node has no upstream; set [edge] upstream")
