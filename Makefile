# `make bench FRAMEWORK=pytorch` and `make test` install all that they need.

PYTHON ?= python3
FRAMEWORK ?= pytorch
SUITE ?= bench
ARGS ?=
SELECT ?= not slow

# Images often set this variable. Then Python would compile all modules again in each command, which
# takes five seconds or more. Users also call ckptbench without make. So the setup compiles, too.
unexport PYTHONDONTWRITEBYTECODE

HARNESS := .venvs/harness
BIN := $(HARNESS)/bin
COMPILE := $(BIN)/python -m compileall -q --workers 0 $(HARNESS)/lib
ONE_THREAD := OMP_NUM_THREADS=1 TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1
# Every folder with an adapter.toml is a framework, unless it declares itself the floor.
DECLARATIONS := $(shell grep --files-without-match '^floor = true' adapters/*/adapter.toml)
FRAMEWORKS := $(sort $(patsubst adapters/%/adapter.toml,%,$(DECLARATIONS)))
# The last name comes first, because the tests of TensorFlow take longest.
CONFORMANCE := $(addprefix conformance-,$(shell printf '%s\n' $(FRAMEWORKS) | sort --reverse))

.PHONY: setup tools bench figures docs notebooks test test-slow test-fast test-frameworks fuzz
.PHONY: check environments format regress clean

setup: $(HARNESS)/.complete

tools: $(HARNESS)/.tools

# The stamp is written last, so that an interrupted installation starts again. pip would compile on
# one processor. A module that cannot be compiled ends nothing, because it only costs time.
$(HARNESS)/.complete: pyproject.toml
	$(PYTHON) -m venv --clear $(HARNESS)
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check --editable .
	-$(COMPILE)
	touch $@

# Only tests, checks and notebooks need these packages. A measurement begins without them.
$(HARNESS)/.tools: $(HARNESS)/.complete
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check --editable '.[dev]'
	-$(COMPILE)
	touch $@

bench: setup
	$(BIN)/ckptbench run $(SUITE) --framework $(FRAMEWORK) $(ARGS)

# Draws the stored runs as SVG and PNG in build/figures, and measures nothing.
figures: setup
	$(BIN)/ckptbench figures $(ARGS)

# Renews the tables and figures of README.md and docs/ from the reference runs and the declarations.
docs: setup
	$(BIN)/python -m harness.docs

# Executes the notebooks on the present reference runs.
notebooks: tools
	$(BIN)/jupyter-execute --inplace notebooks/*.ipynb

# Tests driver and worker with `raw`, then each framework's adapter in its own environment.
test: test-fast test-frameworks

# Runs the tests that need several ranks, a cluster or much time. Then compares the states that the
# frameworks hold.
test-slow: SELECT := slow
test-slow: test-fast test-frameworks
	$(BIN)/ckptbench run parity --framework all --results build/tests

test-fast: tools
	$(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder \
	    -m '$(SELECT)' $(ARGS)

# Tries 20,000 wrong inputs, other ones each time. `make test` tries the same 2,000 each time.
fuzz: tools
	CKPTBENCH_FUZZ=20000 $(BIN)/pytest tests/test_fuzz.py tests/test_fuzz_processes.py $(ARGS)

# Makes the environments of all frameworks. Those that are there already take no time.
environments: setup
	$(BIN)/ckptbench env create $(FRAMEWORKS)

# Tests several frameworks at once, each on one processor. If two of them used all processors, both
# would take twice as long.
test-frameworks: environments
	$(MAKE) --jobs 3 --output-sync=target --no-print-directory SELECT='$(SELECT)' \
	    $(CONFORMANCE)

conformance-%:
	$(ONE_THREAD) .venvs/$*/bin/python -m pytest -c tests/conformance/pytest.ini -m '$(SELECT)' \
	    --framework $* tests/conformance

check: tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/readability.py

format: tools
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Compares with the machine's baseline. The first run on a machine becomes it.
regress: setup
	$(BIN)/ckptbench regress --framework $(FRAMEWORK) $(ARGS)

clean:
	rm -rf .venvs .scratch build *.egg-info
