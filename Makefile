# kvkeep: what a person runs. Every target makes its own environment first; all output goes under
# build/, which git ignores.
#
#   PYTHON=python3.12       the interpreter for .venv (3.10 or newer)
#   TORCH_INDEX=<url>       a package index with CPU builds of torch (the default index may hand
#                           out a CUDA build of several GB, which works as well)
#   ARGS="-k leases -x"     further arguments for pytest, the demo or the benchmark
#   SEED=123                the seed of an earlier run: of tests, slow, chaos, soak, fuzz
#   MINUTES=2               how long `make chaos` (10 without it) and `make soak` (30) go on
#   JOBS=1                  test processes at a time; 0 runs all in one, for a debugger

PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
ARGS ?=
SEED ?=
MINUTES ?= 10
JOBS ?= 2

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.kvkeep-setup
PYTEST := $(PY) -m pytest -n $(JOBS) --dist loadfile $(if $(SEED),--hypothesis-seed=$(SEED))
SOURCES := protocol server adapter tests deploy .ci

.DEFAULT_GOAL := help
.PHONY: help setup node demo test slow soak chaos fuzz bench bench-agentic gpu docs lint format clean

help: ## say what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22
	@echo "  ARGS=--help shows what a target's program takes, as in: make fuzz ARGS=--help"

setup: $(STAMP) ## build .venv with everything the other targets need

# Re-made when the dependencies or this file change; pip then finds most of it in place.
$(STAMP): pyproject.toml Makefile
	@test ! -L $(VENV) || { \
	  echo "make: $(VENV) is a link to $$(readlink $(VENV)), which is older than pyproject.toml or Makefile here:"; \
	  echo "      making it anew would have it run this tree instead of its own. Remove the link first."; \
	  exit 1; } >&2
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "make: '$(PYTHON)' was not found. Install Python 3.10 or newer (Debian and Ubuntu:"; \
	  echo "      apt-get install python3 python3-venv), or name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3"; \
	  exit 1; } >&2
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "make: '$(PYTHON)' is $$($(PYTHON) --version 2>&1); kvkeep needs Python 3.10 or newer."; \
	  echo "      Name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3"; exit 1; } >&2
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "make: '$(PYTHON)' has no venv module. Debian and Ubuntu ship it apart:"; \
	  echo "      apt-get install python3-venv    (for an interpreter of its own version: python3.X-venv)"; \
	  exit 1; } >&2
	@echo "setting up $(VENV) with $$($(PYTHON) --version) …"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -c 'import torch' 2>/dev/null || { \
	  echo "  1 of 2: torch, for the engines of the demo and the tests (large: minutes)"; \
	  $(PY) -m pip install --quiet --progress-bar on --disable-pip-version-check \
	    $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"; }
	@echo "  2 of 2: kvkeep and its tools"
	@$(PY) -m pip install --quiet --disable-pip-version-check -e '.[test,dev,stores]'
	@touch $@

# The client in JavaScript is installed under build/node by its own test. Without npm that test says
# that it is skipped; with CI=true it fails instead.
node:
	@if ! command -v npm >/dev/null 2>&1 || ! command -v node >/dev/null 2>&1; then \
	  echo "Node.js or npm was not found: the tests of the Node.js client are skipped."; \
	  if test "$$CI" = true; then echo "CI=true: that counts as a failure." >&2; exit 1; fi; \
	fi

demo: setup ## the whole story in a minute or two: two engines, one cache, kill -9 in between
	@mkdir -p build
	@$(PY) -m adapter.conformance.demo $(ARGS)

# KV_SAMPLED, a seed, draws the cases of tests marked sampled; KV_SAMPLED= runs all, as slow does.
test: export KV_SAMPLED ?= $(or $(SEED),$(shell od -An -N4 -tu4 /dev/urandom | tr -d ' '))
test: setup node ## every test but the slow ones, and of large families a part
	@mkdir -p build
	@$(PYTEST) -m 'not slow' --junitxml=build/test-main.xml $(ARGS)

# KV_TRACES=<folder> has the public traces: two steps fail by name without (docs/scale.md).
slow: setup node ## the full counts behind every claim, with verdicts: build/slow.json (4 h)
	@mkdir -p build
	@$(PY) -m tests.slow $(if $(SEED),--seed $(SEED)) $(ARGS)

# ARGS='--l2 disk' gives the server a lower tier, and hits its process, too.
chaos: setup ## engines under load, everything killed and cut off: MINUTES=10; build/chaos.json
	@mkdir -p build
	@$(PY) -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) \
	  --json build/chaos.json $(ARGS)

soak: setup ## 64 clients at full rate on a small arena: MINUTES=30 SEED=1; build/soak.json
	@mkdir -p build
	@$(PY) -m tests.soak $(if $(filter command line,$(origin MINUTES)),--minutes $(MINUTES)) \
	  $(if $(SEED),--seed $(SEED)) --json build/soak.json $(ARGS)

fuzz: setup ## decoders and sequences of messages from a seed, the corpus first: build/fuzz.json
	@mkdir -p build
	@$(PY) -m tests.fuzz $(if $(SEED),--seed $(SEED)) --json build/fuzz.json $(ARGS)

bench: setup ## what this machine does: copies, latency, start-up, memory
	@mkdir -p build
	@$(PY) -m server bench $(ARGS)

bench-agentic: setup ## twelve agents, twelve turns, one cache: build/agentic.json, .png (3 min)
	@mkdir -p build
	@$(PY) -m adapter.conformance.agentic --json build/agentic.json --png build/agentic.png $(ARGS)

gpu: ## what only a GPU can prove, on this machine's GPU: build/gpu.json (6 minutes)
	@bash tests/gpu/run.sh

docs: setup ## the documents as a site, each link checked: build/site/index.html
	@mkdir -p build
	@$(PY) .ci/build_site.py build/site

lint: setup ## format, lint, types, import contracts
	@$(VENV)/bin/ruff format --check $(SOURCES)
	@$(VENV)/bin/ruff check $(SOURCES)
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --cache-dir build/import_linter_cache

format: setup ## rewrite the sources in the house format
	@$(VENV)/bin/ruff format $(SOURCES)
	@$(VENV)/bin/ruff check --fix $(SOURCES)

clean: ## remove .venv and everything that was made
	rm -rf $(VENV) build dist *.egg-info
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
