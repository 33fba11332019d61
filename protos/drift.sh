#!/usr/bin/env bash
# Fails when the checked-in generated code is not what protos/weir/v1 gives. Usage: drift.sh BIN.
set -euo pipefail
bin=$1
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
bash protos/generate.sh "$bin" "$fresh"
for file in "$fresh"/protos/weir/v1/*; do
  if ! diff -q "$file" "protos/weir/v1/$(basename "$file")" >/dev/null; then
    echo "protos/weir/v1/$(basename "$file") is out of date: run make proto and commit what it writes" >&2
    exit 1
  fi
done
echo "Generated code matches the protos."
