# Everything a developer or a CI machine types. `make serve` and `make test` need only Python 3.11+
# with its headers and venv module, a C compiler and make; each target sets up what it uses.
PYTHON ?= python3
VENV ?= .venv
DATA ?= var
BIN := $(VENV)/bin
PYX := $(shell find leveret -name '*.pyx' -o -name '*.pxd')

# The requirements of one of pyproject.toml's extras, as words of a pip command.
extra = $(shell $(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["$(1)"])')

.PHONY: build serve test lint docs install interop screenshots bench soak asan clean

build: $(VENV)/.built

serve: build
	exec $(BIN)/leveret serve --data-dir $(DATA)

test: build
	$(BIN)/python -m pytest

lint: build
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# Writes docs/compatibility.md anew, when tests have come, gone or changed their names, and the
# reference of settings, when these have.
docs: build
	$(BIN)/python -m tests.compatibility
	$(BIN)/python -m leveret.config.reference docs

# For use, not for development: the command `leveret` on this user's path or in the active venv.
install:
	$(PYTHON) -m pip install .

interop: build $(VENV)/.interop
	$(BIN)/python -m pytest interop_tests

# Pictures of the web UI for the documentation, made anew: light, dark, and as on a phone. It takes
# some minutes, as they are of a node at work.
screenshots: build $(VENV)/.interop
	.ci/packages pngquant
	$(BIN)/python -m interop_tests.ui.pictures docs/images

# bench/README.md says how to read it.
bench: build
	.ci/packages rabbitmq-server
	$(BIN)/python -m bench

soak: build
	$(BIN)/python -m pytest -m soak

# The compiled modules once more under AddressSanitizer, in a copy beside the usual build.
asan: build
	PYTHON=$(CURDIR)/$(BIN)/python tests/run_asan.sh $(wildcard tests/amqp tests/cli/load tests/core tests/ports)

clean:
	rm -rf $(VENV) build dist *.egg-info interop_tests/node_modules
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find leveret \( -name '*.so' -o -name '*.c' -o -name '*.html' \) -delete
	find . -name __pycache__ -prune -exec rm -rf {} +

# The first build installs the package and its dependencies; later ones compile what has changed.
$(VENV)/.built: pyproject.toml setup.py $(PYX)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	if test $@ -nt pyproject.toml; then $(BIN)/python setup.py -q build_ext --inplace; \
	else $(BIN)/pip install -q --disable-pip-version-check -e '.[dev]'; fi
	touch $@

# Other people's clients, and the other broker to compare with.
$(VENV)/.interop: pyproject.toml $(VENV)/.built
	.ci/packages rabbitmq-server amqp-tools librabbitmq-client-java ruby-bunny \
		golang-go golang-github-rabbitmq-amqp091-go-dev prometheus chromium
	command -v javac >/dev/null || .ci/packages default-jdk-headless
	command -v npm >/dev/null || .ci/packages npm  # Node's own distribution brings it along
	$(BIN)/pip install -q --disable-pip-version-check $(foreach word,$(call extra,interop),'$(word)')
	npm install --silent --no-audit --no-fund --no-package-lock --prefix interop_tests
	touch $@
