PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test test-all test-versions tiny bench bench-kernels accuracy docs lint clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(STAMP)

demo: setup
	$(BIN)/python examples/matmul/demo.py

test: setup
	$(BIN)/python -m pytest -n auto -m "not slow"

test-all: setup
	$(BIN)/python -m pytest -n auto

# the oldest and the newest of everything, an environment after the other, in build/versions
test-versions: setup
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	$(BIN)/python tests/versions.py -n auto

# one file per part: collecting the whole suite would take longer than these tests
TINY := tests/test_machine.py tests/test_dtypes.py tests/test_view.py tests/test_errors.py \
	tests/execute/test_memory.py tests/isa/test_vector.py tests/isa/test_tensor.py \
	tests/language/test_creation.py tests/timing/test_schedule.py tests/nkilib/core/rmsnorm/test_rmsnorm_quant.py

tiny: setup
	$(BIN)/python -m pytest -m tiny -p no:xdist $(TINY)

bench: setup
	$(BIN)/python -m benchmarks

bench-kernels: setup
	$(BIN)/python -m benchmarks.kernels

# the model against every published figure, as docs/accuracy.md has it (minutes)
accuracy: setup
	$(BIN)/python -m benchmarks.accuracy

docs: setup
	$(BIN)/python -m nki.cli.docs
	$(BIN)/python -m nkilib.docs

lint: setup
	$(BIN)/ruff format --check src tests examples benchmarks
	$(BIN)/ruff check src tests examples benchmarks
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
