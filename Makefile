# promptrl: every target sets up what it needs by itself, so `make train` or `make test` is all that a fresh clone takes.
#
#   make train      install, get the weights, train and evaluate the quickstart    make lint    ruff and mypy
#   make test       install, get the weights, run the suite without slow tests      make check   lint, then test
#   make test-all   the same with the slow tests                                    make bench   the benchmarks
#   make setup      install into .venv only                                         make clean / make distclean
#
# PYTHON=python3.12 picks the interpreter, CONFIG=mbpp_plus.yaml another configuration, ARGS="..." is handed on.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
CONFIG ?= quickstart.yaml
ARGS ?=

# All paths are relative to this folder, so that a clone may lie under a path with spaces.
PY := .venv/bin/python
STAMP := .venv/.installed
ASSETS := qwen2.5-coder-0.5b minilm humaneval

# Where the model hub cannot be reached, each question put to it costs about 25 seconds before the answer is taken from
# elsewhere. The files of the table are pinned by sha256, so asking gains nothing; HF_HUB_OFFLINE=0 asks all the same.
export HF_HUB_OFFLINE ?= 1
# The order of sets of strings must not differ from one run to the next.
export PYTHONHASHSEED ?= 0
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1

.PHONY: help setup assets train test test-all lint check bench clean distclean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -8

setup: $(STAMP)

# --no-compile: Python compiles the modules it imports; compiling all of them doubled the time (166 s, now 88 s).
# The stamp is written last: an interrupted installation is taken up again, a finished one costs nothing.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is missing or older than 3.11: name another one, as in make PYTHON=python3.12"; exit 1; }
	@echo "[setup] creating .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv
	@echo "[setup] installing torch, the largest package (minutes on a slow line)"
	@$(PY) -m pip install -qq --no-compile -c constraints.txt torch
	@echo "[setup] installing promptrl and its other packages"
	@$(PY) -m pip install -qq --no-compile -c constraints.txt -e '.[dev]'
	@touch $(STAMP)
	@echo "[setup] done"

assets: $(STAMP)
	@echo "[assets] getting and verifying $(ASSETS)"
	@$(PY) -m promptrl.cli assets get $(ASSETS)

train: assets
	@echo "[train] $(CONFIG)"
	@$(PY) scripts/train_ppo.py --config $(CONFIG) $(ARGS)

test: assets
	$(PY) -m pytest -m "not slow" $(ARGS)

test-all: assets
	$(PY) -m pytest $(ARGS)

lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

check: lint test

bench: assets
	@for script in benchmarks/*.py; do \
		[ -e "$$script" ] || { echo "there is no script in benchmarks/"; exit 1; }; \
		echo "[bench] $$script"; $(PY) "$$script" $(ARGS); \
	done

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

# Runs, results and the cache of weights are kept: they cost more than an installation.
distclean: clean
	rm -rf .venv *.egg-info
