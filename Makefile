# make demo   sets everything up, fetches the embedded model, compiles it, benches it, reports
# make test   sets everything up and passes the tests, lint, types and layering included
# make test-slow   the tests that take minutes each
# Both need Python 3.11 or newer and make; PYTHON=python3.12 chooses another interpreter.

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test setup lint types layers unit test-slow bench bench-peers overhead train-head check-mac clean

demo: setup
	$(BIN)/mtpx warm smollm2-135m || echo "It runs eagerly, then."
	@echo
	$(BIN)/mtpx bench smollm2-135m --plain-baseline
	@echo
	$(BIN)/mtpx trace report

test: lint types layers unit

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "mtpx needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade --constraint constraints.txt pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

layers: setup
	$(BIN)/lint-imports

# a worker a core, a file of tests at a time; each computes by itself, threads that share two cores wait for each other
unit: setup
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile

test-slow: setup
	$(BIN)/pytest -m slow

bench: setup
	$(BIN)/mtpx bench --plain-baseline

# against transformers, and llama.cpp where llama-cpp-python is installed
bench-peers: setup
	$(BIN)/python tests/peers.py

overhead: setup
	$(BIN)/python -m mtpx.simulate --overhead

train-head: setup
	$(BIN)/mtpx head train smollm2-135m --out build/smollm2-135m

# what only a Mac can tell, in one zip with nothing personal in it; elsewhere on MLX's CPU build
check-mac: setup
	$(BIN)/python tests/check_mac.py --out check-mac.zip

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
