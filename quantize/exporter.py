"""The process that exports a graph: onnxruntime-genai's model builder, ended when its parent ends.

Takes the builder's own arguments. A build that is killed leaves no exporter behind that goes on to
fill the disk.
"""

from __future__ import annotations

import runpy

from runtime.child import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__", alter_sys=True)
