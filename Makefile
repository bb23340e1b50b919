# make train   sets everything up, then trains the embedded default
# make test    sets everything up, then runs the whole test suite
# make check   lint, types, import rules and tests: the gate before a push
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: train test check lint docs clean

train: $(READY)
	$(BIN)/ragen2 train $(ARGS)

# One torch thread a worker: two that share two cores with two threads each would wait for each other.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile $(ARGS)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test

docs: $(READY)
	$(BIN)/python -m ragen2.reference docs

# torch comes first and alone: a dependency that asks for any torch must find the pinned one.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV)
