# isthmus: everything a developer does. Needs python3 (3.11 or newer) and make; the rest is set up in .venv.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.isthmus-installed
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
TESTS ?= tests
# Most tests wait; six side by side keep two processors busy.
WORKERS ?= 6
MESSAGES ?= 400000

# Tests start hundreds of Python processes: without bytecode files each compiles isthmus again, for half a second or more.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo examples test soak check format bench docs lock clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv and install everything from the lock files

$(STAMP): requirements.lock requirements-build.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "isthmus needs Python 3.11 or newer: apt-get install python3 python3-venv"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "isthmus needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) -V 2>&1): make PYTHON=/path/to/a/newer/python3"; exit 2; }
	@[ -x $(BIN)/python ] || $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "Python's venv module is missing: apt-get install python3-venv"; exit 2; }
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@echo "installing what requirements.lock names into $(VENV) (a few minutes the first time)"
	@$(PIP) install --require-hashes -r requirements-build.lock
	@$(PIP) install --require-hashes --no-build-isolation --no-compile -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(STAMP) ## Federate three namespaces on this machine and prove that nothing was lost
	@$(BIN)/isthmus demo

examples: $(STAMP) ## Run every example, each with a proof; EXAMPLE_OPTIONS="--messages 336776" for all the flights
	@for example in examples/*/run; do echo "== $$example"; $(BIN)/python $$example --json $(EXAMPLE_OPTIONS) || exit; done

test: $(STAMP) ## Run the tests, with a twentieth of the long counts
	@$(BIN)/isthmus prepare
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadscope --again $(TESTS)

soak: $(STAMP) ## Run the tests with the long counts (hours); writes benchmarks/results/
	@$(BIN)/python -m pytest --soak --soak-results benchmarks/results -o faulthandler_timeout=0 $(TESTS)

# mypy takes one processor. The other one collects the tests, which compiles them: otherwise each worker of `make test` would.
check: $(STAMP) ## Everything that needs no running: format, lint, types, layers, docs
	@$(BIN)/ruff format --check src tests docs benchmarks
	@$(BIN)/ruff check src tests docs benchmarks
	@( found=$$($(BIN)/python -m pytest --collect-only -qq $(TESTS) 2>&1) || { echo "$$found"; exit 1; } ) & collecting=$$!; \
		$(BIN)/mypy; wait $$collecting
	@$(BIN)/lint-imports
	@$(BIN)/python docs/check.py

format: $(STAMP) ## Format the code and mend what the linter can
	@$(BIN)/ruff check --fix --quiet src tests docs benchmarks || true
	@$(BIN)/ruff format src tests docs benchmarks

bench: $(STAMP) ## Measure beside RabbitMQ Shovel and an SDK loop; writes benchmarks/results/
	@$(BIN)/isthmus bench all --messages $(MESSAGES) --peers shovel,sdk-loop --results benchmarks/results $(BENCH_OPTIONS)

docs: $(STAMP) ## Write the generated pages of docs/reference again
	@$(BIN)/python docs/generate.py

lock: $(STAMP) ## Resolve the dependencies again and write the lock files
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
		--all-extras --group dev --upgrade --output-file requirements.lock pyproject.toml
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
		--constraints requirements.lock --upgrade --output-file requirements-run.lock pyproject.toml
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
		--group pyproject.toml:build --constraints requirements.lock --upgrade --output-file requirements-build.lock

clean: ## Remove .venv and every cache
	@rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache artifacts build dist
	@rm -rf tests/interop/javascript/node_modules
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
