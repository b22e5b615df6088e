# Two commands on a fresh machine: `make demo` and `make test`. Both set everything up.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := PIP_CONSTRAINT=$(CURDIR)/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip

# What compiles does so once, before a clock runs or several processes would do it at the same time.
WARM := $(BIN)/python -c "from meshwright.search.joint.jit_warm_up import warm_up; warm_up()"

# Where the time of tests goes.
SLOWEST := --durations=30

# Half of the time tests wait, for processes that they start: three workers for two cores.
WORKERS := -n $(shell expr $$(nproc) \* 3 / 2) --maxprocesses 8 --dist worksteal

# Files with tests of a marker: collecting all the others would take as long as running these.
marked = $(shell grep -rl --include='test_*.py' 'mark\.$(1)' tests)

.PHONY: demo test warm replay gpu-test check bench figures reference clean

demo: $(VENV)/.installed
	$(WARM)
	$(BIN)/meshwright demo

# Tests that measure rates run alone, and tests that wait for a clock two at a time.
test: warm
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not alone and not waits and not replay" $(SLOWEST) $(WORKERS)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m waits $(SLOWEST) -n 2 --dist worksteal $(call marked,waits)
	$(BIN)/python -m pytest -m alone $(SLOWEST) $(call marked,alone)

warm: $(VENV)/.developer
	$(WARM)

# Plans, predictions, explanations and bytes as before, number by number; UPDATE=1 writes them anew.
replay: $(VENV)/.developer
	$(WARM)
	UPDATE=$(UPDATE) OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/replay -n auto --maxprocesses 4

# On a machine with a GPU and its own PyTorch, which has the other dependencies or finds them on its
# PYTHONPATH; several NCCL ranks share the GPU. Ranks that are killed may take others along.
# Its PyTorch may come with plugins of pytest's that warn beside pytest-xdist.
gpu-test: BARE := -p no:benchmark
gpu-test: export PYTHONPATH := src:$(PYTHONPATH)
gpu-test:
	$(subst $(BIN)/python,$(PYTHON),$(WARM))
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest tests/gpu -v -m "gpu and not alone" $(SLOWEST) -n 4 --dist worksteal $(BARE)
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest tests/gpu -v -m "gpu and alone" $(SLOWEST) $(BARE)

check: $(VENV)/.developer
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --doctest-modules src testbed

bench: $(VENV)/.developer
	$(BIN)/python benchmarks/start_up.py
	$(BIN)/python benchmarks/placements.py
	$(BIN)/python benchmarks/capture.py
	$(BIN)/python benchmarks/engines.py
	$(BIN)/python benchmarks/match.py
	$(BIN)/python benchmarks/proofs.py
	$(BIN)/python benchmarks/generate.py tests/rewrite/data/unity_rules_320.json
	$(BIN)/python benchmarks/search_engines.py
	$(BIN)/python benchmarks/joint_times.py
	$(BIN)/python benchmarks/joint_growth.py
	$(BIN)/python benchmarks/joint_ablations.py
	PYTHONPATH=tests $(BIN)/python benchmarks/report_page.py

figures: $(VENV)/.developer
	$(BIN)/python docs/figures/draw.py

reference: $(VENV)/.developer
	$(BIN)/python -m docs.reference.generate

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --editable ".[torch]"
	touch $@

$(VENV)/.developer: $(VENV)/.installed
	$(PIP) install --quiet --editable ".[dev,torch,hf]"
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
