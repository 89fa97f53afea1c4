# `make bench FRAMEWORK=pytorch` and `make test` do all of their own set-up. Nothing else has to be installed by hand.

PYTHON ?= python3
FRAMEWORK ?= pytorch
SUITE ?= bench
ARGS ?=
SELECT ?= not slow

HARNESS := .venvs/harness
BIN := $(HARNESS)/bin
ONE_THREAD := OMP_NUM_THREADS=1 TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1
FRAMEWORKS := $(filter-out raw,$(notdir $(patsubst %/,%,$(dir $(wildcard adapters/*/adapter.toml)))))

.PHONY: setup bench figures notebooks test test-slow test-fast test-frameworks check format regress clean

setup: $(HARNESS)/.complete

# The stamp comes last: an interrupted installation is made anew.
$(HARNESS)/.complete: pyproject.toml
	$(PYTHON) -m venv --clear $(HARNESS)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

bench: setup
	$(BIN)/ckptbench run $(SUITE) --framework $(FRAMEWORK) $(ARGS)

# Redraws the stored runs, and measures nothing: SVG and PNG in build/figures.
figures: setup
	$(BIN)/ckptbench figures $(ARGS)

# Answers the notebooks' questions anew, from the reference runs of now.
notebooks: setup
	$(BIN)/jupyter-execute --inplace notebooks/*.ipynb

# The driver and the worker with `raw`, then every framework's conformance in its own environment.
test: test-fast test-frameworks

# What needs several ranks, a cluster, or patience; then that all frameworks hold the same state.
test-slow: SELECT := slow
test-slow: test-fast test-frameworks
	$(BIN)/ckptbench run parity --framework all --results build/tests

test-fast: setup
	$(BIN)/pytest --numprocesses 3 --dist loadfile -m '$(SELECT)' $(ARGS)

# Several frameworks at a time, each on one processor: threads of two that want both take twice as long. TensorFlow takes longest.
test-frameworks: setup
	$(BIN)/ckptbench env create $(FRAMEWORKS)
	$(MAKE) --jobs 3 --output-sync=target --no-print-directory SELECT='$(SELECT)' \
	    $(addprefix conformance-,$(filter tensorflow,$(FRAMEWORKS)) $(filter-out tensorflow,$(FRAMEWORKS)))

conformance-%:
	$(ONE_THREAD) .venvs/$*/bin/python -m pytest -c tests/conformance/pytest.ini -m '$(SELECT)' tests/conformance/test_$*.py tests/conformance/test_deepfreeze_$*.py

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The first run on a machine becomes its baseline.
regress: setup
	$(BIN)/ckptbench regress --framework $(FRAMEWORK) $(ARGS)

clean:
	rm -rf .venvs .scratch build *.egg-info
