# Everything a developer or a CI machine types. `make serve` and `make test` need only Python 3.11+,
# a C compiler and make; each target sets up what it uses.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYX := $(shell find leveret -name '*.pyx' -o -name '*.pxd')

.PHONY: build
build: $(VENV)/.built

$(VENV)/.built: pyproject.toml setup.py $(PYX)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -e '.[dev]'
	touch $@
