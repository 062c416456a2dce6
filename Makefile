PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
LOWER := build/lower

.PHONY: demo check test test-all test-lower lint docs bench simulate-job model fuzz chaos mutate

demo: $(VENV)/ready
	$(BIN)/python examples/resnet50.py --step-time 0.05
	$(BIN)/python examples/resnet50.py --step-time 0.05 --engine tensorflow
	$(BIN)/python examples/side_by_side.py --svg build/side-by-side.svg

PYTEST := $(BIN)/python -m pytest -q --numprocesses 2 --dist loadfile
WITHOUT_CLUSTER := tests/parity tests/unit
# In the order of the clusters that they share: docs/decisions/tests.md#120-what-tests-ask-of-ray.
ON_CLUSTERS := --no-loadscope-reorder tests/ray tests/e2e tests/chaos

# What needs no framework, no server and no process of its own: tests/tiers.py.
check: lint
	$(PYTEST) -m "not slow" --quick tests/unit

# All that a change can break.
test: lint
	$(PYTEST) -m "not slow" $(WITHOUT_CLUSTER)
	$(PYTEST) -m "not slow" $(ON_CLUSTERS)

# A test hangs that takes more seconds than this: the longest one takes minutes of CPU time, and a machine has other work.
LONG := --hypothesis-profile long --timeout 3600

# The tests that are marked as slow, and Hypothesis' properties on all of their examples, as well.
test-all: lint
	$(PYTEST) $(LONG) $(WITHOUT_CLUSTER)
	$(PYTEST) $(LONG) $(ON_CLUSTERS)
	$(MAKE) test-lower

# The first program of the README, and the tests that need neither a cluster nor TensorFlow nor torch, at the lower bounds of
# pyproject.toml: bounds are what is tested.
test-lower: $(LOWER)/ready
	$(LOWER)/bin/python -m tests.lower_bounds

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=. $(BIN)/lint-imports --no-cache

# A site in build/site, which needs no server: open build/site/index.html.
docs: $(VENV)/ready
	$(BIN)/python -m mkdocs build --strict

MINUTES ?= 1
CHAOS ?=

# The control plane under faults: docs/reliability.md.
simulate-job: $(VENV)/ready
	$(BIN)/python -m tests.protocol --minutes $(MINUTES) --workers-of-cpu 2

# The core of the control plane, in all interleavings: needs Debian's packages spin and gcc.
model: $(VENV)/ready
	$(BIN)/python -m tests.model

# Real jobs on a cluster of several raylets, to which one thing after the other happens: docs/reliability.md.
chaos: $(VENV)/ready
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(CHAOS)

CASES ?= 1000
SEED ?= 0

# So many files of each format, damaged or of random values, read by us and by reference readers: docs/reliability.md, "Bad
# input".  `make fuzz CASES=10000 SEED=7 FUZZ="-k parquet"` reads so many of some formats.
fuzz: $(VENV)/ready
	ulimit -v 8388608; FUZZ_CASES=$(CASES) FUZZ_SEED=$(SEED) \
		$(BIN)/python -m pytest -q --numprocesses 2 --timeout 120 --timeout-method thread tests/unit/test_fuzz.py $(FUZZ)

MUTATE ?=

# Small changes to the code, drawn at random, and the share of them that the tests without a cluster notice.  All tests
# run once first; `make mutate MUTATE="--folders pecan_ray/job --tests tests/unit/job --count 30 --seed 7"` runs some.
mutate: $(VENV)/ready
	$(BIN)/python -m tests.mutation $(MUTATE)

BENCH ?=

# About 40 minutes on an idle machine; `make bench BENCH="--cases photographs text"` runs some cases only.
bench: $(VENV)/bench-ready
	$(BIN)/python -m benchmarks.peers --json build/bench.json --plot build/bench.png $(BENCH)

# Libraries of others in which pipelines are used: docs/decisions/tests.md#48-libraries-of-the-test-environment.
LIBRARIES := accelerate ipykernel jax pytorch-lightning transformers

# The CPU builds of TensorFlow and torch: the other ones bring gigabytes that a machine without a GPU cannot use.
$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q -e ".[s3,gcs,serve,docs,examples,dev]" tensorflow-cpu torch==2.13.0 $(LIBRARIES)
	touch $@

# uv alone can choose the lowest versions; what our own dependencies need is the newest.
$(LOWER)/ready: pyproject.toml
	$(PYTHON) -m venv --clear $(LOWER)
	$(LOWER)/bin/python -m pip install -q uv
	$(LOWER)/bin/uv pip install -q --python $(LOWER)/bin/python --resolution lowest-direct -e ".[s3,gcs,examples,dev]"
	touch $@

# A peer that cannot be installed here is left out of the tables, and named.
$(VENV)/bench-ready: $(VENV)/ready
	for peer in matplotlib grain spdl webdataset; do $(BIN)/python -m pip install -q $$peer || echo "without $$peer"; done
	mkdir -p build
	touch $@
