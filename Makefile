# make run, make test: everything from a bare Python >= 3.11 with venv. Nothing outside this folder is changed.
PYTHON ?= python3
PROFILE ?= quick
BIN := .venv/bin
STAMP := .venv/.installed

# Whatever other Jupyter this machine has, the kernel named python3 is the one in .venv.
export JUPYTER_PATH := $(CURDIR)/.venv/share/jupyter

.PHONY: help env run test check matrix fuzz torture soak mutants lab docs lint format clean

help:
	@echo "make run    install into .venv if needed, then the main job (PROFILE=quick; tiny, full)"
	@echo "make test   install if needed, then the tests that a change must pass: library, workbench, one of each extension"
	@echo "make check  what make test leaves out: the extensions' suites, the whole matrix, and make lint"
	@echo "make fuzz, make torture   wrong arguments; kills and damaged files: an hour each (CALLS=20000, KILLS=200, FLIPS=1000)"
	@echo "make soak   everything again and again: does memory grow? (HOURS=4)"
	@echo "make mutants   single faults in the package: do the tests notice? (NUM=400)"
	@echo "make lab    JupyterLab on copies of the notebooks, in data/lab"
	@echo "make docs   the documentation with executed notebooks, into data/site (PROFILE=quick; tiny for a look)"
	@echo "make lint   ruff and mypy;  make format  let ruff rewrite"
	@echo "make clean  remove .venv and caches; data/ is kept"

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "installing into .venv (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

run: env
	$(BIN)/lqrlab run --profile $(PROFILE)

# a file's tests share what its fixtures make and what its programs are compiled to: they stay in one process;
# a worker that was killed (a test that hangs) ends the run, because pytest-xdist may wait for ever after it
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --max-worker-restart 0

test: env
	$(PYTEST) -m "not matrix"

check: lint matrix

matrix: env
	$(PYTEST) -m matrix

CALLS := 20000
KILLS := 200
FLIPS := 1000
SEED := 0

fuzz: env
	$(BIN)/python tools/fuzz.py --calls $(CALLS) --seed $(SEED)

torture: env
	$(BIN)/python tools/torture.py --kills $(KILLS) --flips $(FLIPS) --seed $(SEED)

HOURS := 4

soak: env
	$(BIN)/python tools/soak.py --hours $(HOURS)

NUM := 400

mutants: env
	$(BIN)/python tools/mutants.py --num $(NUM) --seed $(SEED)

lab: env
	$(BIN)/python tools/lab.py

# the notebooks that go deeper run only when they are named
docs: PROFILE = quick
docs: env
	$(BIN)/lqrlab run --profile $(PROFILE)
	$(BIN)/lqrlab run --profile $(PROFILE) $(basename $(notdir $(filter-out notebooks/0%,$(wildcard notebooks/*.ipynb))))
	NO_MKDOCS_2_WARNING=1 RUN=data/runs/$(PROFILE) $(BIN)/mkdocs build

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv *.egg-info build dist .pytest_cache .ruff_cache .mypy_cache
