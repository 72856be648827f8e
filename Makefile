# Everything a person or CI runs. `make` alone lists the targets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PAIMON := connectors/mview_connectors/followers/paimon
# Test processes: each has its own Spark session (about 2 GB).
WORKERS ?= 2
# What is compiled once is kept: every process of the tests would compile it again.
TEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest -n $(WORKERS) --dist loadgroup --durations 20 --tb short
# More arguments for pytest, e.g. make test ARGS='-k merge'
ARGS ?=

.PHONY: help venv java services demo test test-all chaos mutants lint format types layers docs check wheel-check bench lock clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

java: ## check that Spark can start: Java 17 or 21
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	found=$$("$$java" -version 2>&1 | sed -nE 's/.*version "(1\.)?([0-9]+).*/\2/p' || true); \
	case "$$found" in 17|21) ;; *) \
	  echo "Spark needs Java 17 or 21; found: $${found:-none} ($$java)." >&2; \
	  echo "Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17;" >&2; \
	  echo "or point JAVA_HOME at one." >&2; exit 1;; esac

venv: $(READY) ## make .venv with the locked versions and mview itself

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "mview needs Python 3.10 or newer, $(PYTHON) is $$($(PYTHON) --version); make PYTHON=…" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "no virtual environment could be made; Debian, Ubuntu: apt-get install python3-venv" >&2; \
	    rm -rf $(VENV); exit 1; }
	@echo "installing into $(VENV) (some 800 MB the first time)"
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  "$$(sed -nE 's/^(uv==[^ ]+).*/\1/p' requirements.lock)"
	@$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

services: java venv ## install the servers that the tests use (Debian as root), fetch their jars
	@.ci/services

demo: java venv ## an example from start to end: load, merge, live changes, the result
	@$(BIN)/mview demo

test: java venv services ## the tests: unit, Spark, property, with real servers
	@$(TEST) -m 'not long' $(ARGS)

test-all: java venv services ## the same and the long ones: large sizes, all of TPC-H and TPC-DS
	@$(TEST) $(ARGS)

# ARGS='--everywhere kill-jvm kill-tree --kills 0 --minutes 0 --sinks 0': each step of each part of a run.
chaos: java venv services ## kills, hangs and failures at every step, for three quarters of an hour
	@$(BIN)/python -m tests.chaos $(ARGS)

mutants: java venv ## faults put into merge, ivm and store, one at a time: does a test notice each?
	@$(BIN)/python -m tests.mutation $(ARGS)

lint: venv ## style
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: venv ## repair style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: venv ## types, strict
	@$(BIN)/mypy

layers: venv ## who may import whom
	@$(BIN)/lint-imports --no-logo

docs: venv ## the docs as a site in build/site; a link to nothing is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

check: lint types layers docs wheel-check ## all checks that are not tests

wheel-check: venv ## sdist -> wheel -> clean environment: does it work as installed?
	@.ci/wheel-check

bench: java venv services ## measure; the results go to tests/bench/README.md
	@$(BIN)/python -m tests.bench $(ARGS)

lock: venv ## write the locks anew: of pyproject.toml, of the environment for Paimon
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --no-header --no-annotate \
	  --generate-hashes --extra mysql --extra postgresql --extra mssql --extra iceberg --extra delta \
	  --extra avro --extra notebook --extra dev --extra docs --upgrade \
	  --output-file requirements.lock pyproject.toml
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --no-header --no-annotate \
	  --generate-hashes --upgrade --output-file $(PAIMON)/requirements.lock $(PAIMON)/requirements.in

clean: ## remove what make made, but not the caches of packages and jars
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
