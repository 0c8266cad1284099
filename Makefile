# Two commands do all the set-up:  make quickstart   runs the study in miniature;   make test   passes the tests.
# Variables: PYTHON (3.11 or newer), VENV (where to install), PIP_FLAGS (passed to pip install).

PYTHON ?= python3
VENV ?= .venv
PIP_FLAGS ?=
BIN := $(VENV)/bin
# Spinning OpenMP threads would take the core of the run next door.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: quickstart study test lint bench mutations slurm-dev slurm-dev-stop clean help

help:
	@echo "make quickstart  install, train the study in miniature, write its report page (about 3 minutes)"
	@echo "make study       install, train the paper's seven sweeps in miniature, write all tables and figures (about 30 minutes)"
	@echo "make test        install with the development tools and run all tests"
	@echo "make lint        ruff"
	@echo "make bench       run every benchmark (QUICK=1: under a minute each)"
	@echo "make mutations   put deliberate faults into the maths and see the tests catch each (about 4 minutes)"
	@echo "make slurm-dev   start a real Slurm on this machine, to try things (docs/slurm_dev.md); slurm-dev-stop ends it"
	@echo "make clean       remove the virtual environment and the reports; runs and mlflow.db stay"

quickstart: $(VENV)/.installed
	$(BIN)/cppo launch quickstart
	$(BIN)/cppo report quickstart
	@echo
	@echo "The page:   file://$(CURDIR)/reports/build/quickstart/index.html"
	@echo "In MLflow:  as \`cppo launch\` said above; the commands are in $(BIN)"

study: $(VENV)/.installed
	$(BIN)/cppo launch study
	$(BIN)/cppo report study
	@echo
	@echo "The page:   file://$(CURDIR)/reports/build/study/index.html"

test: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(VENV)/.installed-dev
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script $(if $(QUICK),--quick) || exit 1; done

mutations: $(VENV)/.installed-dev
	$(BIN)/python tests/mutations.py

slurm-dev:
	@$(PYTHON) -m dev.slurm start

slurm-dev-stop:
	@$(PYTHON) -m dev.slurm stop

clean:
	rm -rf $(VENV) reports/build

$(VENV)/bin/pip:
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) not found: apt-get install python3 python3-venv, or make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $$($(PYTHON) --version) is too old: Python 3.11 or newer is needed (make PYTHON=/path/to/python3.11)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "error: $(PYTHON) has no venv module: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)

# One stamp per set of packages; it is written only after pip has succeeded.
$(VENV)/.installed: pyproject.toml constraints-cpu.txt | $(VENV)/bin/pip
	$(BIN)/pip install --quiet $(PIP_FLAGS) -c constraints-cpu.txt -e '.[train,report,ui]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints-cpu.txt | $(VENV)/bin/pip
	$(BIN)/pip install --quiet $(PIP_FLAGS) -c constraints-cpu.txt -e '.[dev]'
	@touch $@ $(VENV)/.installed
