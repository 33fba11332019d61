"""How an engine process is started: which module, and its one argument."""

from __future__ import annotations

import sys

from edge.classifier.config import ClassifierConfig
from edge.config import SECRETS, EdgeConfig
from edge.engine.config import EngineConfig, ProcessConfig
from edge.releases import CLASSIFY
from edge.starts import Start
from runtime.child import ChildSpec


def engine_spec(config: EdgeConfig, start: Start) -> ChildSpec:
    """Of one model, by the task of the release that is to be started."""
    process = ProcessConfig(
        socket=config.engine_socket,
        release_dir=start.release.path,
        precision=start.precision,
        model=config.model or start.release.manifest.name,
        node=config.node,
        cpus=config.cpus,
        threads=config.threads,
        spin=config.spin,
        context_length=config.context_length,
        max_queue=config.max_queue,
        default_deadline_s=config.default_deadline_s,
        memory_budget_bytes=config.memory_budget_bytes,
        log_level=config.log_level,
    )
    labels = start.release.manifest.task == CLASSIFY
    module, own = (
        ("edge.classifier", _classifier(config, process)) if labels else ("edge.engine", _decoder(config, process))
    )
    return ChildSpec("engine", (sys.executable, "-m", module, own.model_dump_json()), withheld=SECRETS)


def _decoder(config: EdgeConfig, process: ProcessConfig) -> ProcessConfig:
    return EngineConfig(
        **process.model_dump(),
        slots=config.slots,
        kv_tokens=config.kv_tokens,
        prefix_cache_bytes=config.prefix_cache_bytes,
        prefix_cache_answers=config.prefix_cache_answers,
        max_output_tokens=config.max_output_tokens,
        memory_sharers=config.memory_sharers,
    )


def _classifier(config: EdgeConfig, process: ProcessConfig) -> ProcessConfig:
    return ClassifierConfig(
        **process.model_dump(),
        batch_rows=config.batch_rows,
        batch_tokens=config.batch_tokens,
        linger_ms=config.linger_ms,
    )
