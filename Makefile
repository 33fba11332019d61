# Weir. `make demo` and `make test` do all their own set-up in .venv, without root.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
# Address of a package index that holds CPU builds of torch; empty: the index pip is set up for.
TORCH_INDEX ?=

# Small cores are shared: no library may spread its threads over all of them by itself.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
export HF_HUB_DISABLE_TELEMETRY ?= 1

PROTOS := $(wildcard protos/weir/v1/*.proto protos/inference/*.proto)
PACKAGES := wire release router runtime quantize edge cloud weir bench

.PHONY: help demo test check proto lock setup format clean

help:
	@echo "make demo    set up and watch a cascade at work     make test    set up and run all tests"
	@echo "make check   lint, types, layers, protos, deploy    make proto   generate code from protos/"
	@echo "make lock    write requirements/*.lock anew         make format  format the code"

setup: $(VENV)/.ready

$(VENV)/.ready: requirements/dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 14) else f"Weir needs Python 3.11 to 3.13, this is {v[0]}.{v[1]}: set PYTHON=python3.12 or the like")'
	@echo "Setting up $(VENV): about two minutes the first time"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25'
	$(if $(TORCH_INDEX),PIP_INDEX_URL=$(TORCH_INDEX)) $(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	@touch $@

demo: $(VENV)/.ready
	@$(BIN)/weir demo $(DEMO_FLAGS)

test: $(VENV)/.ready
	$(BIN)/python -m pytest $(TEST_FLAGS)

check: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(addprefix -p ,$(PACKAGES))
	$(BIN)/lint-imports
	$(BIN)/buf lint
	@bash protos/drift.sh $(BIN)
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec deploy/compose.yaml
	$(BIN)/hadolint deploy/*.Dockerfile

proto: $(VENV)/.ready
	@bash protos/generate.sh $(BIN) .

LOCK := $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
	--no-emit-package torch --no-emit-package weir-inference --no-annotate --custom-compile-command "make lock" --quiet

# The roles' locks hold the versions of dev.lock, which are the ones that are tested.
lock: $(VENV)/.ready
	$(LOCK) --all-extras --group dev --output-file requirements/dev.lock
	@for role in edge gateway cloud quantize; do \
	  $(LOCK) --extra $$role --constraints requirements/dev.lock --output-file requirements/$$role.lock; \
	done

format: $(VENV)/.ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
