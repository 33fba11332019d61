#!/usr/bin/env bash
# Generates the Python code of protos/weir/v1 and protos/inference. Usage: generate.sh BIN OUT, from the repository's root.
set -euo pipefail
bin=$1 out=$2
"$bin/python" -m grpc_tools.protoc -I. \
  --python_out="$out" --grpc_python_out="$out" --mypy_out="quiet:$out" --mypy_grpc_out="quiet:$out" \
  --plugin=protoc-gen-mypy="$bin/protoc-gen-mypy" --plugin=protoc-gen-mypy_grpc="$bin/protoc-gen-mypy_grpc" \
  protos/weir/v1/*.proto protos/inference/*.proto
