#!/usr/bin/env bash
# Fails when the checked-in generated code is not what the protos give. Usage: drift.sh BIN.
set -euo pipefail
bin=$1
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
bash protos/generate.sh "$bin" "$fresh"
for folder in protos/weir/v1 protos/inference; do
  for file in "$fresh/$folder"/*; do
    if ! diff -q "$file" "$folder/$(basename "$file")" >/dev/null; then
      echo "$folder/$(basename "$file") is out of date: run make proto and commit what it writes" >&2
      exit 1
    fi
  done
done
echo "Generated code matches the protos."
