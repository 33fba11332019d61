"""What a parent tells its rank processes: one JSON object in one environment variable.

Knows no torch: the engine host writes it, the rank reads it. Rank number and world size come from
RANK and WORLD_SIZE, and the meeting point from MASTER_ADDR and MASTER_PORT, as torch expects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from cloud.config import EngineHostConfig, WeightPrecision

SPEC_VARIABLE = "WEIR_RANK_SPEC"


@dataclass(frozen=True, slots=True)
class RankSpec:
    """The model to load and how to run it. Paths are strings, so that it is plain JSON."""

    node: str
    model_dir: str
    name: str
    release: str
    precision: WeightPrecision
    ranks: int
    threads: int
    slots: int
    max_queue: int
    context_length: int
    max_output_tokens: int
    default_deadline_s: float
    run_dir: str
    heartbeat_s: float
    start_timeout_s: float
    log_level: str

    @property
    def socket(self) -> Path:
        """Where rank 0 serves."""
        return Path(self.run_dir) / "rank0.sock"

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> RankSpec:
        fields = json.loads(text)
        return cls(**{**fields, "precision": WeightPrecision(fields["precision"])})


def from_config(config: EngineHostConfig, run_dir: Path) -> RankSpec:
    """The spec of an engine host's group."""
    return RankSpec(
        node=config.node,
        model_dir=str(config.model_dir.resolve()),
        name=config.served_name,
        release=config.release,
        precision=config.precision,
        ranks=config.tensor_parallel_size,
        threads=config.threads_per_rank,
        slots=config.max_batch,
        max_queue=config.max_queue,
        context_length=config.context_length,
        max_output_tokens=config.max_output_tokens,
        default_deadline_s=config.default_deadline_s,
        run_dir=str(run_dir),
        heartbeat_s=config.heartbeat_s,
        start_timeout_s=config.start_timeout_s,
        log_level=config.log_level,
    )


def rank_environment(spec: RankSpec, rank: int, port: int) -> Mapping[str, str]:
    """What one rank process needs in its environment."""
    return {
        SPEC_VARIABLE: spec.encode(),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(spec.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # The group lives on one machine: never resolve its name to find an interface.
        "GLOO_SOCKET_IFNAME": "lo",
        # Ranks share cores with each other and with their host: wait by sleeping, never by spinning.
        "OMP_NUM_THREADS": str(spec.threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "KMP_BLOCKTIME": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
