# Every target makes the virtual environment if it is missing; only Python 3.11, 3.12 or 3.13 is needed.
#   make quickstart      the whole pipeline on a small corpus, with its results at the end
#   make test            the quick tests, ten minutes on two cores of an AMD EPYC of 2024 (PYTEST="-n 0 -k masking": some)
#   make test-long       the long tests
#   make check           formatter, linter, type checker
#   make docs            the documentation as a site: site/index.html    (search needs a server: .venv/bin/mkdocs serve)
#   make bench           every benchmark, or one: make bench BENCH=bench/step.py

PYTHON ?= python3
PIP_OPTIONS ?=
QUICKSTART ?=
PYTEST ?=
# All except those that need hours, a GPU, a launcher, root or a second checkout.
BENCH ?= $(filter-out bench/study.py bench/gpu% bench/traffic.py bench/bitwise.py,$(shell grep -l __main__ bench/*.py))

BIN := $(CURDIR)/.venv/bin
INSTALLED := .venv/installed

.PHONY: quickstart test test-long check docs bench .venv

quickstart: $(INSTALLED)
	$(BIN)/python quickstart/run.py $(QUICKSTART)

# Several workers keep all cores busy: threads that wait should sleep at once.
test test-long: export OMP_WAIT_POLICY ?= passive

# A test stuck in native code, which setup.cfg's timeout cannot interrupt, ends the run with the stacks of all threads.
STUCK := -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true

test: $(INSTALLED)
	$(BIN)/python -m pytest -m "not long" -n 3 --dist loadfile $(STUCK) $(PYTEST)

test-long: $(INSTALLED)
	$(BIN)/python -m pytest -m long -o timeout=1800 $(PYTEST)

check: $(INSTALLED)
	PATH="$(BIN):$$PATH" pre-commit run --all-files

docs: $(INSTALLED)
	$(BIN)/python docs/make_reference.py
	$(BIN)/mkdocs build --strict

bench: $(INSTALLED)
	@for file in $(BENCH); do echo "$$file"; $(BIN)/python $$file || exit 1; done

.venv: $(INSTALLED)

$(INSTALLED): setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install $(PIP_OPTIONS) --constraint constraints.txt --editable ".[dev]"
	@touch $@
