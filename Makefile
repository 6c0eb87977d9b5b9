PYTHON ?= python3
VENV := .venv
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif
EXTRAS ?= dev
BARE := $(VENV)/.bare
STAMP := $(VENV)/.installed
WORKERS ?= auto
# the tests start hundreds of interpreters: let them reuse compiled modules
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup hooks demo test test-all coverage test-gpu test-versions tiny bench bench-kernels times accuracy compare figures docs pictures site versions serve release \
	lint clean

setup: $(STAMP)

# only what `import nki` needs
$(BARE): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -e .
	touch $(BARE)

# everything that tests, benchmarks and documents need; EXTRAS=test,torch,jax for the tests alone
$(STAMP): $(BARE)
	@echo "Installing what the tests need (PyTorch, JAX, SciPy, ...): once, some minutes"
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[$(EXTRAS)]'
	touch $(STAMP)

# ruff and mypy before each commit
hooks: setup
	$(BIN)/pre-commit install

demo: $(BARE)
	$(BIN)/python examples/matmul/demo.py

test: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations=20 -m "not slow"

test-all: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# the share of lines and branches that `make test` runs, also in processes that tests start
coverage: setup
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n $(WORKERS) --dist worksteal -m "not slow"
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# the torch backend, on this machine's GPU, if it has one, and on the CPU
test-gpu: setup
	$(BIN)/python -m pytest -p no:xdist tests/backends/torch

# with the oldest and the newest dependencies, in environments in build/versions
test-versions: setup
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	$(BIN)/python tests/versions.py -n auto

# one file per part, without plugins: collecting the suite and loading plugins would take longer than the tests
TINY := tests/machine/test_machine.py tests/machine/test_dtypes.py tests/ir/test_view.py tests/test_errors.py \
	tests/backends/reference/test_memory.py tests/isa/test_vector.py tests/isa/test_tensor.py \
	tests/language/test_creation.py tests/timing/test_schedule.py tests/nkilib/core/rmsnorm/test_rmsnorm_quant.py

tiny: setup
	PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(BIN)/python -m pytest -m tiny $(TINY)

# every benchmark; the interpreters that it compares with are in build/compare
bench: setup build/compare/.installed
	$(BIN)/python -m benchmarks

bench-kernels: setup
	$(BIN)/python -m benchmarks.kernels

# writes the modelled times that the pages of nkilib show (minutes)
times: setup
	$(BIN)/python -m benchmarks.kernels --json --brief > build/times.json && mv build/times.json benchmarks/kernels/times.json

# compares the model with published figures, for docs/accuracy.md (minutes)
accuracy: setup
	$(BIN)/python -m benchmarks.accuracy

# compares other interpreters, for docs/comparison.md: two environments in build/ (a gigabyte), minutes
TRITON_VIZ ?= git+https://github.com/Deep-Learning-Profiling-Tools/triton-viz@203b0c7cbb35448d53f3cf5359db55e0d4fb3522

compare: build/compare/.installed build/compare-viz/.installed
	build/compare/bin/python -m benchmarks.compare --viz-python build/compare-viz/bin/python

build/compare/.installed:
	$(PYTHON) -m venv build/compare
	build/compare/bin/pip install --quiet -e . triton==3.9.0 jax==0.10.2 torch==2.13.0
	touch $@

build/compare-viz/.installed:
	$(PYTHON) -m venv build/compare-viz
	build/compare-viz/bin/pip install --quiet -e . triton==3.6.0 torch==2.13.0 "$(TRITON_VIZ)"
	touch $@

docs: setup
	$(BIN)/python -m nki.cli.docs
	$(BIN)/python -m nkilib.docs
	$(BIN)/python tools/drawings.py
	$(BIN)/python tools/texts.py
	$(BIN)/python tools/signatures.py
	$(BIN)/python tools/pages.py docs/tutorial/*.md

# the pictures of the profile and of the viewer; needs Chromium
pictures: setup
	$(BIN)/python tools/screenshots.py

site: setup
	$(BIN)/python tools/build_site.py

# adds the site to those of other versions in build/versions, with a menu on every page
versions: site
	$(BIN)/python tools/versions.py

# the site on http://localhost:8000
serve: site
	$(BIN)/python -m http.server --bind localhost --directory build/site 8000

# measures what a new user waits for; needs an idle machine
figures: setup
	$(BIN)/python tools/figures.py

# builds and checks the release; publishes nothing
release: setup
	$(BIN)/python tools/release.py

lint: setup
	$(BIN)/ruff format --check src tests examples benchmarks tools
	$(BIN)/ruff check src tests examples benchmarks tools
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
