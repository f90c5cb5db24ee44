# `make demo` and `make test` need only Python >= 3.11.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
# uv is about ten times as fast as pip. Fall back to pip if uv does not find a package (pip may have other indexes configured).
INSTALL = sh -c 'env $${PIP_INDEX_URL:+UV_DEFAULT_INDEX=$$PIP_INDEX_URL} $(BIN)/uv pip install -q --compile-bytecode --python $(BIN)/python "$$@" \
  || $(BIN)/python -m pip install -q --disable-pip-version-check "$$@"' install

.PHONY: help demo test check format bench bench-peers bench-check docs test-slow test-browser test-engines test-nightly clean
help:
	@echo "make demo          run 24 agents on the embedded model"
	@echo "make test          run the test suite"
	@echo "make test-slow     run the slow tests: killed processes, complete commands, the snippets of the docs"
	@echo "make check         run ruff, mypy --strict and the import rules"
	@echo "make bench         benchmark agents against plain gather loops, tool sharing and checkpoints"
	@echo "make bench-peers   benchmark BatchAgent against other libraries, each in a separate environment (hours)"
	@echo "make bench-check   check the cost of an agent against the committed baseline"
	@echo "make docs          build the documentation into site/"
	@echo "make test-browser  test the report and the live page in Chromium"
	@echo "make test-engines  install vLLM (CPU), Dynamo, Ray and OpenCode (with npm), and test against them"
	@echo "make test-nightly  the same with SGLang (CPU)"

demo: $(VENV)/.user
	$(BIN)/batch-agent demo

test: $(VENV)/.dev
	$(BIN)/pytest -n 4 -m "not slow and not engines and not browser"

test-slow: $(VENV)/.dev
	$(BIN)/pytest -n 4 -m "slow and not engines and not browser"

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.peers --only single_2000 --peers batch_agent,expert,gather
	$(BIN)/python -m benchmarks.tools
	$(BIN)/python -m benchmarks.checkpoint

bench-peers: $(VENV)/.dev
	$(BIN)/python -m benchmarks.peers --out benchmarks/results/peers.json

bench-check: $(VENV)/.dev
	$(BIN)/python -m benchmarks.check

docs: $(VENV)/.docs
	$(BIN)/zensical build --clean --strict

test-browser: $(VENV)/.dev
	bash scripts/browser/install.sh
	$(BIN)/pytest -n 2 -m browser tests/browser

test-engines: $(VENV)/.ray
	bash scripts/engines/install.sh
	$(BIN)/pytest -m engines tests --ignore tests/nightly --timeout 900

test-nightly: $(VENV)/.dev
	$(BIN)/python -m scripts.engines.install sglang
	$(BIN)/pytest -m engines tests/nightly --timeout 900

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "BatchAgent needs Python 3.11 or newer; '$(PYTHON)' is older. Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.user: $(VENV)/bin/python pyproject.toml
	@echo "Installing BatchAgent into $(VENV) (a minute, once) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check uv || true
	@$(INSTALL) -e '.[local,speed]'
	@$(BIN)/python -m compileall -q src  # once, instead of in each process if Python cannot write the cache
	@touch $@

$(VENV)/.dev: $(VENV)/.user pyproject.toml
	@echo "Installing the test dependencies into $(VENV) (a minute, once) ..."
	@$(INSTALL) -e '.[local,speed,dev]'
	@touch $@

$(VENV)/.ray: $(VENV)/.dev pyproject.toml
	@$(INSTALL) -e '.[ray]'
	@touch $@

$(VENV)/.docs: $(VENV)/.user pyproject.toml
	@$(INSTALL) -e '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
