# Two commands need nothing but Python >= 3.11: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
# uv is about ten times as fast as pip; pip is the fallback for package indexes that only pip is configured for.
INSTALL = sh -c 'env $${PIP_INDEX_URL:+UV_DEFAULT_INDEX=$$PIP_INDEX_URL} $(BIN)/uv pip install -q --python $(BIN)/python "$$@" \
  || $(BIN)/python -m pip install -q --disable-pip-version-check "$$@"' install

# make test AGAIN=1 repeats the tests that failed, one after the other.
# What the tests import of their dependencies is compiled once, also where Python may not write bytecode otherwise.
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/pytest $(if $(AGAIN),--last-failed --last-failed-no-failures=none)
WORKERS = $(if $(AGAIN),-n 0,-n $(1))
# Each worker collects all tests, which takes ten seconds: not those of engines and browsers too, and not in more workers
# than it takes to keep two cores busy.
QUICK = $(call WORKERS,3) --ignore tests/live --ignore tests/nightly --ignore tests/browser

.PHONY: help demo test check format bench bench-peers bench-check docs test-slow test-browser test-engines test-nightly release clean
help:
	@echo "make demo          a tour: 24 real agents on the embedded model, a kill, a resume, a report"
	@echo "make test          run the test suite"
	@echo "make test-slow     tests that take seconds each: fault injection at every step, whole commands, the snippets of the docs"
	@echo "make check         ruff, mypy --strict, import rules"
	@echo "make bench         cost of an agent compared with gather loops, savings of shared tool calls, cost of a checkpoint"
	@echo "make bench-peers   the same work by BatchAgent and by other libraries, each in its own environment (hours)"
	@echo "make bench-check   fail if an agent has become more expensive than the committed baseline"
	@echo "make docs          build the documentation into site/"
	@echo "make test-browser  test the report and the live page in Chromium"
	@echo "make test-engines  install and start real vLLM (CPU), Dynamo, Ray, OpenCode, Codex and Claude Code (with npm), and test what each promises"
	@echo "make test-nightly  what takes too long for each change: kills at every point, a thousand examples of each property; the other tests of real engines; SGLang (CPU), MLflow and Phoenix"
	@echo "make release       build wheels, sdists and the SBOM into dist/, and install them and each extra into clean environments"

demo: $(VENV)/.user
	$(BIN)/batch-agent demo

test: $(VENV)/.dev
	$(PYTEST) $(QUICK) --dist loadfile -m "not slow and not nightly and not engines and not browser"

test-slow: $(VENV)/.check
	$(PYTEST) $(QUICK) -m "slow and not nightly and not engines and not browser"

check: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.check
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
	$(PYTEST) $(call WORKERS,2) -m browser tests/browser

test-engines: $(VENV)/.ray
	bash scripts/engines/install.sh
	$(PYTEST) $(call WORKERS,2) -m "engines and not nightly" tests/live tests/benchmarks tests/unit/backends --timeout 900

test-nightly: $(VENV)/.ray
	bash scripts/engines/install.sh
	$(BIN)/python -m scripts.engines.install sglang mlflow phoenix shellcheck vllm-router ray-serve object-stores
	$(PYTEST) $(call WORKERS,4) -m "nightly and not engines"
	$(PYTEST) $(call WORKERS,4) --hypothesis-profile nightly --timeout 1200 tests/property
	$(PYTEST) -m "engines and nightly" tests --timeout 900

release: $(VENV)/.dev
	$(BIN)/python -m scripts.release --extras $(or $(EXTRAS),all)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "BatchAgent needs Python 3.11 or newer; '$(PYTHON)' is older. Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.user: $(VENV)/bin/python pyproject.toml
	@echo "Installing BatchAgent into $(VENV) (a minute, once) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check uv || true
	@UV_COMPILE_BYTECODE=1 $(INSTALL) -e '.[local,speed]'
	@$(BIN)/python -m compileall -q src  # once, instead of in each process where Python cannot write
	@touch $@

$(VENV)/.dev: $(VENV)/.user pyproject.toml
	@echo "Installing test dependencies into $(VENV) (a minute, once) ..."
	@$(INSTALL) -e '.[local,speed,dev]'
	@touch $@

# Type checkers, among them one that brings Node along: a third of a gigabyte that `make test` does not need.
$(VENV)/.check: $(VENV)/.dev pyproject.toml
	@$(INSTALL) -e '.[check]'
	@touch $@

$(VENV)/.ray: $(VENV)/.dev pyproject.toml
	@$(INSTALL) -e '.[ray]'
	@touch $@

$(VENV)/.docs: $(VENV)/.user pyproject.toml
	@$(INSTALL) -e '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) site dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
