"""The process that exports a graph: onnxruntime-genai's model builder, ended when its parent ends.

Takes the builder's own arguments. A build that is killed leaves no exporter behind that goes on to
fill the disk.

Two of the builder's model classes give way to ones of our own. Gemma 3: the builder expects rotary
settings as older transformers gave them. Phi-3 with long-context factors: the builder's graph switches
tables by position; a release ends where the second table would begin, so ours has the first alone.
"""

from __future__ import annotations

import functools
import importlib
import math
import runpy
import sys
from collections.abc import Sequence
from typing import Any

from runtime.child import die_with_parent

_BUILDER = "onnxruntime_genai.models.builder"
# Every layer's KV cache is as long as the context: rows of a batch share one pool.
_OPTIONS = ("--extra_options", "windowed_kv_cache=false")


@functools.cache
def _adapt() -> None:
    """Puts our classes in the place of the builder's, once in a process."""
    import torch

    importlib.import_module("onnxruntime_genai.models")  # makes its parts importable by the names it uses
    builders: Any = importlib.import_module("builders")

    class Gemma3(builders.Gemma3Model):  # type: ignore[misc]
        """Takes the two kinds of rotary settings apart, which transformers 5 keeps in one mapping."""

        def make_config_init(self, config: Any) -> None:
            kinds = config.rope_parameters
            config.rope_local_base_freq = kinds["sliding_attention"]["rope_theta"]
            config.rope_parameters = kinds["full_attention"]
            super().make_config_init(config)

    class Phi3(builders.Phi3MiniModel):  # type: ignore[misc]
        """Short factors alone, right up to the original context, which is where the tables end."""

        def make_rope_init(self, config: Any) -> None:
            rope = config.rope_parameters
            if rope["rope_type"] != "longrope":
                super().make_rope_init(config)
                return
            original = rope["original_max_position_embeddings"]
            factor = rope.get("factor") or config.max_position_embeddings / original
            scale = rope.get("attention_factor")
            if scale is None:
                scale = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
            self.rope_attrs["rescale_factors"] = torch.tensor(rope["short_factor"], dtype=torch.float32)
            self.rope_attrs["mscale"] = scale
            self.rope_attrs["cache_length"] = original

    builders.Gemma3Model, builders.Phi3MiniLongRoPEModel = Gemma3, Phi3


def run(arguments: Sequence[str]) -> None:
    """Runs the builder in this process, whose arguments it takes for its own meanwhile."""
    _adapt()
    own = sys.argv
    sys.argv = [_BUILDER, *arguments, *_OPTIONS]
    try:
        runpy.run_module(_BUILDER, run_name="__main__", alter_sys=True)
    finally:
        sys.argv = own


if __name__ == "__main__":
    die_with_parent()
    run(sys.argv[1:])
