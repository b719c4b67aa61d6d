# Every target makes the virtual environment if it is missing; only Python 3.11, 3.12 or 3.13 is needed.
#   make quickstart      the whole pipeline on a small corpus, with its results at the end
#   make test            the quick tests (PYTEST="-n 0 -k masking": some)
#   make test-long       the long tests
#   make check           formatter, linter, type checker
#   make docs            the documentation as a site: site/index.html    (search needs a server: .venv/bin/mkdocs serve)
#   make bench           the benchmarks of a CPU, or one: make bench BENCH=bench/step.py
#   make .venv           the environment alone, as for the quickstart; the other targets add what they need to it

PYTHON ?= python3
PIP_OPTIONS ?=
QUICKSTART ?=
PYTEST ?=
# The others need arguments, hours, a GPU, a launcher, root or another checkout.
BENCH ?= $(addprefix bench/,data_prep.py engine.py finetune.py kernels.py loader.py step.py)

BIN := $(CURDIR)/.venv/bin
INSTALLED := .venv/installed
DEVELOPMENT := .venv/development

.PHONY: quickstart test test-long check docs bench .venv

quickstart: $(INSTALLED)
	$(BIN)/python electra_sampler/quickstart/run.py $(QUICKSTART)

# Several workers keep all cores busy: threads that wait should sleep at once.
test test-long: export OMP_WAIT_POLICY ?= passive

# Two more than cores: tests wait for processes, and some for time to pass.
WORKERS := $(shell expr $$(nproc) + 2)

# A test stuck in native code, which setup.cfg's timeout cannot interrupt, ends the run with the stacks of all threads.
STUCK := -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true

test: $(DEVELOPMENT)
	$(BIN)/python -m pytest -m "not long" -n $(WORKERS) --dist loadfile $(STUCK) $(PYTEST)

test-long: $(DEVELOPMENT)
	$(BIN)/python -m pytest -m long -o timeout=1800 $(PYTEST)

check: $(DEVELOPMENT)
	PATH="$(BIN):$$PATH" pre-commit run --all-files

docs: $(DEVELOPMENT)
	$(BIN)/python docs/make_reference.py
	$(BIN)/mkdocs build --strict

bench: $(DEVELOPMENT)
	@for file in $(BENCH); do echo "$$file"; $(BIN)/python $$file || exit 1; done

.venv: $(INSTALLED)

# uv installs faster, but does not read pip's settings: where those say where packages come from, pip installs.
# Modules are compiled when they are first imported, which most never are. Where Python keeps none of that,
# as in many containers, they are compiled here: otherwise every command would compile PyTorch anew.
$(INSTALLED) $(DEVELOPMENT): setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	@if command -v uv > /dev/null && ! $(BIN)/python -m pip config list | grep -qE "index|find.links"; then \
	    install="uv pip install --python $(BIN)/python --index-strategy unsafe-best-match$(if $(PYTHONDONTWRITEBYTECODE), --compile-bytecode)"; \
	else install="$(BIN)/python -m pip install$(if $(PYTHONDONTWRITEBYTECODE),, --no-compile)"; fi; \
	set -x; $$install $(PIP_OPTIONS) --constraint constraints.txt --editable ".$(if $(filter $(DEVELOPMENT),$@),[dev])"
	@touch $(INSTALLED) $@
