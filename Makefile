# `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.adagp-setup
# The tests run in two processes of one thread each: more threads only make them wait for each other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.DEFAULT_GOAL := help
.PHONY: help setup demo yosys nextpnr test test-all test-integrations bench fuzz lint docs clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

setup: $(STAMP) ## make .venv with everything (once, and again when the dependencies change)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "adagp needs Python 3.11 or newer; '$(PYTHON)' is: $$($(PYTHON) --version 2>&1). Try: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -e '.[dev]' -c constraints.txt
	@touch $@

demo: setup ## what would make a small ResNet faster here, then backpropagation, ADA-GP and the alternatives (about two minutes)
	$(BIN)/adagp advise --preset demo --seconds 12
	$(BIN)/adagp compare --preset demo

lint: setup ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

yosys: setup # the one of pip compiles itself on its first run, for about a minute: before the tests, not within one
	@$(BIN)/python -c 'from adagp.accelerator.rtl.tools import YOSYS; print("yosys", YOSYS.version())'

nextpnr: setup # places and routes in one slow test
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -e '.[place]' -c constraints.txt
	@$(BIN)/python -c 'from adagp.accelerator.rtl.tools import NEXTPNR; print("nextpnr", NEXTPNR.version())'

INTEGRATIONS := $(VENV)/.adagp-integrations

$(INTEGRATIONS): $(STAMP) # the libraries that people train with; the demo does without them
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -e '.[integrations]' -c constraints.txt
	@touch $@

test: lint yosys $(INTEGRATIONS) ## lint, and all tests but the slow ones
	$(PYTEST) -m "not slow"

test-all: lint yosys nextpnr $(INTEGRATIONS) ## lint, and all tests
	$(PYTEST)

test-integrations: $(INTEGRATIONS) ## only the tests with transformers, accelerate, Lightning and others (two minutes)
	$(PYTEST) tests/integrations
	$(PYTEST) tests/test_docs.py -k "with-"

BENCHMARKS := benchmarks benchmarks.language benchmarks.kernels benchmarks.approximation benchmarks.data benchmarks.distributed benchmarks.accelerator

bench: setup ## measure the budgets, side by side in one run; fails where one does not hold
	@failed=; for part in $(BENCHMARKS); do $(BIN)/python -m $$part || failed="$$failed $$part"; done; \
	if [ -n "$$failed" ]; then echo "over budget:$$failed"; exit 1; fi

fuzz: setup ## thousands of mutated inputs, and runs killed and resumed (at most 15 minutes); fails where one does not hold
	$(BIN)/python -m fuzz

docs: setup ## render the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## remove everything that was generated (not .venv, not runs/)
	rm -rf site dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
