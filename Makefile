# Every target makes the environment it needs, and is safe to repeat.
# Needed: Python 3.11 or newer, git and make. Another Python: make test PYTHON=<command>

PYTHON ?= python3.11 python3

VENV := .venv
BIN := $(VENV)/bin
DEV := $(VENV)/.ready-dev,samples,teachers,probe,experiments,embed,explore,docs,export,openvino
AT_ONCE := -n auto --maxprocesses 8 --dist worksteal
SHAPES := --jaxtyping-packages=veca,beartype.beartype
WITH_SHAPES := $(addprefix tests/,analysis backbone convert data distill embed explore/test_session.py probe teacher \
    train)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo quick bench docs test check format slow doors package gpu kills clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.ready-samples,embed,explore ## Sample photos through several budgets: a table and a page
	$(BIN)/veca demo --out build/demo

quick: $(VENV)/.ready-samples,teachers ## A student from scratch in about five minutes
	$(BIN)/veca distill quick --out build/quick --resume

bench: $(DEV) ## VECA beside full attention, as in docs/results: about 40 minutes
	$(BIN)/veca bench --model small --resolutions 256,512,1024,2048 --budgets 8,16,32,64 \
	    --ffn 0.25,1.0 --batch 1 --threads 2 --rounds 9 --seconds 5 --max-seconds 600 --out build/bench

docs: $(VENV)/.ready-docs ## The site: build/docs/index.html
	$(BIN)/sphinx-build -W --keep-going -q -E -a -d build/doctrees docs build/docs

# One thread for each of the processes that test. Coverage and shape checks at once would double the
# time of either, so that each has a run of its own.
test: export OMP_NUM_THREADS = 1
test: check ## Check, then test: everything with coverage, then tensors with their shapes checked
	$(BIN)/pytest $(AT_ONCE) -m "not slow" --cov
	$(BIN)/pytest $(AT_ONCE) $(SHAPES) -m "not compiled and not slow and not workers" \
	    $(WITH_SHAPES) --ignore tests/distill/test_run.py

check: $(DEV) ## Lint, formatting, types, layers, spelling
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/codespell

format: $(DEV) ## Format the code and repair what the linter can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

slow: $(DEV) ## Run the tests that take long
	$(BIN)/pytest -m slow

doors: $(VENV)/.made ## Test veca in timm, whose torchvision needs an environment of its own
	@test -x $(VENV)/doors/bin/pytest || { $(BIN)/python -m venv --clear $(VENV)/doors && \
	    $(VENV)/doors/bin/pip install -q --disable-pip-version-check -c constraints.txt -e . \
	        pytest torchvision==0.28.0 timm==1.0.31; }
	$(VENV)/doors/bin/pytest --noconftest tests/doors

package: $(VENV)/.made ## Build wheel and sdist twice, check them, and run the demo from an empty environment
	@test -x $(VENV)/package/bin/twine || { $(BIN)/python -m venv --clear $(VENV)/package && \
	    $(VENV)/package/bin/pip install -q --disable-pip-version-check build twine; }
	$(VENV)/package/bin/python tests/package.py

gpu: $(DEV) ## Run the tests that need a CUDA device, and say what ran
	$(BIN)/pytest -m gpu -rs -o addopts="--strict-markers --import-mode=importlib" tests

kills: $(DEV) ## Kill a training run 20 times and compare it with one that never stopped
	$(BIN)/pytest -m slow -k kills -s tests/distill/test_processes.py

clean: ## Remove the environment, every cache and what was built
	rm -rf $(VENV) build dist htmlcov .coverage .coverage.* .hypothesis
	rm -rf .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

# `.ready-<extras>` says that veca[<extras>] is installed: a target that needs more than `dev`
# depends on, say, $(VENV)/.ready-samples,figures. It appears only after pip has succeeded.
$(VENV)/.ready-%: $(VENV)/.made pyproject.toml constraints.txt
	@echo "Installing veca[$*] into $(VENV): minutes the first time, seconds later."
	@$(BIN)/python -m pip install --no-input --disable-pip-version-check --progress-bar off \
	    -c constraints.txt -e '.[$*]' > $(VENV)/pip.log 2>&1 \
	    || { grep -v "^WARNING: Location" $(VENV)/pip.log | tail -n 20 >&2; \
	         echo "The installation failed; all of it is in $(VENV)/pip.log." >&2; exit 1; }
	@touch $@

# A virtual environment cannot move, so one that was made for another folder is made anew.
ifneq ($(shell cat $(VENV)/.made 2>/dev/null),$(CURDIR))
.PHONY: $(VENV)/.made
endif

$(VENV)/.made:
	@for python in $(PYTHON); do \
	    "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	    "$$python" -m venv --clear $(VENV) && printf '%s\n' "$(CURDIR)" > $@; exit; \
	done; \
	echo "No Python 3.11 or newer answers to: $(PYTHON). Name one: make PYTHON=<command>" >&2; exit 1
