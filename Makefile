# gshard-nmt: every target does its own set-up; `make` alone lists them.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The TPU compiler is 0.7 GB that only gshard-inspect's TPU topologies need.
TPU_READY := $(VENV)/.tpu-ready
# The GPU compiler is 0.7 GB that only gshard-inspect's GPU topologies need.
GPU_READY := $(VENV)/.gpu-ready
# Python keeps what it has compiled, so that not every test process compiles the package and the tests anew.
unexport PYTHONDONTWRITEBYTECODE
# Each worker compiles with threads of its own and holds up to 3 GB, so more than four workers are not faster.
# Files are handed out in the order of tests/conftest.py, the longest first.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile \
	--no-loadscope-reorder --durations=15
# These tests start the programs, or compile for several devices. All others are unit tests.
LARGE := tests/integration tests/system tests/multidevice
SLOW = $(shell grep --recursive --files-with-matches --include='test_*.py' 'pytest.mark.slow' tests)

.DEFAULT_GOAL := help
.PHONY: help venv tpu gpu demo lint unit test test-all soak check bench look lock clean

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(READY)  ## set up .venv from requirements.lock (PYTHON=... chooses the interpreter of a new .venv)

$(READY): requirements.lock setup.py scripts/make_venv.sh
	@bash scripts/make_venv.sh $(VENV)
	@touch $(READY)

tpu: $(TPU_READY)  ## add the TPU compiler to .venv: gshard-inspect for TPU slices, without a TPU

$(TPU_READY): requirements-tpu.lock | $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	@touch $@

gpu: $(GPU_READY)  ## add the GPU compiler to .venv: gshard-inspect for GPUs, without a GPU

$(GPU_READY): requirements-gpu.lock | $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	@touch $@

demo: $(READY)  ## harvest, prepare, train, decode and judge on this machine's message catalogues
	@$(BIN)/python scripts/demo.py

unit: $(READY)
	$(PYTEST) -m "not slow" $(addprefix --ignore=,$(LARGE))

test: unit  ## every test but the slow tier
	$(PYTEST) -m "not slow" $(LARGE)

test-all: test $(TPU_READY) $(GPU_READY)  ## the tests of `make test`, then the slow tier
	$(PYTEST) -m slow $(SLOW)

# `make soak CAMPAIGNS=kill SEED=7` repeats one campaign. MINUTES is for each campaign, 60 at most.
MINUTES ?=
CASES ?=
CAMPAIGNS ?=
SEED ?=

soak: $(READY)  ## long campaigns outside CI: 100 kills, 1,000 wrong inputs and more, an hour
	$(BIN)/python -m tests.soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(CASES),--cases $(CASES)) \
		$(if $(SEED),--seed $(SEED)) $(CAMPAIGNS)

check: lint unit  ## lint, format, types and the unit tests

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# `make bench PART=training` runs one part; benchmarks/bench.py lists them. PAGE=always writes the figures of
# a busy machine too. The race takes hours, so it runs apart: .venv/bin/python benchmarks/race.py
PART ?=
PAGE ?=

bench: $(READY)  ## measure beside other systems, 25 minutes; writes docs/performance.md
	$(BIN)/python benchmarks/bench.py $(if $(PART),--part "$(PART)") $(if $(PAGE),--page $(PAGE))

# `make look RUN=runs/demo` looks at the report of a run. Pictures go to build/look/.
RUN ?=

look: $(READY)  ## take pictures of the page of a report in headless Chromium, if it is installed
	@$(BIN)/python scripts/look.py "$(or $(RUN),runs/demo)"

lock:  ## resolve requirements.lock and its additions anew (after a change of setup.py)
	@bash scripts/make_lock.sh

clean:  ## remove what the tools left behind; keeps data/, runs/ and .venv
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
