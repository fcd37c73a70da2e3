# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Needs python3 (>= 3.11) with venv, make and git. Caches live in $AGENTFLOW_CACHE.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export AGENTFLOW_CACHE ?= $(HOME)/.cache/agentflow

.PHONY: setup demo test test-fast test-real check clean

setup: $(VENV)/.ready

# mini-swe-agent is installed without its 700 MB of dependencies; pyproject.toml declares the few
# that our use of it needs.
$(VENV)/.ready: pyproject.toml scripts/system-deps.sh
	scripts/system-deps.sh
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps 'mini-swe-agent>=2.4.6,<2.5'
	touch $@

demo: setup
	rm -rf runs/demo
	$(BIN)/agentflow demo --out runs/demo

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-fast: setup
	$(BIN)/python -m pytest -n auto

test-real: setup
	$(BIN)/python -m pytest -m pypi

test: check test-fast test-real demo

clean:
	rm -rf $(VENV) runs .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
