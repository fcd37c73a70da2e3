# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Needs python3 (>= 3.11) with venv, make and git. What is fetched or built is kept in
# $AGENTFLOW_CACHE, outside the checkout.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
export AGENTFLOW_CACHE ?= $(HOME)/.cache/agentflow

.PHONY: setup demo test check test-fast test-slow test-pypi test-docker test-sglang test-trainer \
	test-bench bench docker sglang-cpu demo-llm soak clean

setup: $(VENV)/.ready

# mini-swe-agent is installed without its 700 MB of dependencies; pyproject.toml declares the few
# that our use of it needs.
$(VENV)/.ready: pyproject.toml scripts/system-deps.sh
	scripts/system-deps.sh
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[dev]'
	$(PIP) --no-deps 'mini-swe-agent>=2.4.6,<2.5'
	touch $@

demo: setup
	rm -rf runs/demo
	$(BIN)/agentflow demo --out runs/demo

test: check test-fast test-slow test-bench test-pypi test-docker test-sglang test-trainer demo

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-fast: setup
	$(PYTEST) -n 2

test-slow: setup
	$(PYTEST) -n 2 -m slow

test-pypi: setup
	$(PYTEST) -m 'pypi and not docker'

# Schedules in virtual time, one seed, exactly as they were.
test-bench: setup
	$(BIN)/python -m benchmarks.gate rollout_quick

# Every benchmark, and where it moved from its baseline. Accept what is meant to have moved with
# `python -m benchmarks.gate NAME --refresh`.
bench: setup
	$(PIP) 'matplotlib>=3.8,<4'
	scripts/with-docker.sh sh -c '$(IMAGE) && $(BIN)/python -m benchmarks.gate'

IMAGE := $(BIN)/python -m agentflow.swe.environment.docker.base_image

# A Docker engine with its own data root and socket, where the machine runs none, and the image of
# the tasks that ship, made from this machine's own files.
docker: setup
	scripts/docker-engine.sh start
	eval "$$(scripts/docker-engine.sh env)" && $(IMAGE)

# Everything on a real engine; Podman, a registry and an emulator of arm64 are installed for it.
test-docker: setup
	scripts/container-extras.sh
	scripts/with-docker.sh sh -c '$(IMAGE) && $(PYTEST) -m docker'

SGLANG := $(BIN)/python -m agentflow.engine.sglang_cpu

# A real SGLang on this CPU, in an environment of its own (2.5 GB), with a small checkpoint that is
# made here. It says where it listens, and serves until Ctrl-C.
sglang-cpu: setup
	$(SGLANG) serve

test-sglang: setup
	$(SGLANG) install
	$(PYTEST) -m sglang

# What a trainer brings: Ray, and torch in the version whose wheel for this CPU has no CUDA with it.
# They come last, so that everything before has shown that it needs neither.
test-trainer: setup
	$(PIP) --editable '.[ray,torch]' 'torch==2.13.0'
	$(PYTEST) -m 'ray or torch'

# A real language model on the CPU acts on the bundled tasks: 135M parameters, shown two worked
# examples, keep the format, and rarely solve anything.
demo-llm: setup
	$(SGLANG) install --smollm
	rm -rf runs/demo-llm
	$(SGLANG) serve --smollm -- \
		$(BIN)/agentflow demo-llm --engine '{url}' --model '{model}' --out runs/demo-llm

# A million simulated turns of faults by action, fewer by trajectory, then random kills of real
# containers. SOAK_JOBS processes take some 25 minutes of processor time for the million.
SOAK_JOBS ?= $(shell nproc)

soak: setup
	$(BIN)/agentflow simulate --faults --schedule action-drawn --turns 1000000 --jobs $(SOAK_JOBS)
	$(BIN)/agentflow simulate --faults --schedule naive --turns 100000 --jobs $(SOAK_JOBS)
	AGENTFLOW_SOAK_KILLS=20 $(PYTEST) -n 2 -m slow tests/resume/test_kill.py
	AGENTFLOW_SOAK_EPISODES=200 scripts/with-docker.sh \
		sh -c '$(IMAGE) && $(PYTEST) -m docker tests/docker/test_container_soak.py'

clean:
	rm -rf $(VENV) runs .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
