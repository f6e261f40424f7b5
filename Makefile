# Everything a developer or a CI machine types. `make serve` and `make test` need only Python 3.11+
# with its headers and venv module, a C compiler and make; each target sets up what it uses, from the
# releases that requirements/ names.
PYTHON ?= python3
VENV ?= .venv
DATA ?= var
BIN := $(VENV)/bin
PYX := $(shell find leveret -name '*.pyx' -o -name '*.pxd')

PIP := $(BIN)/pip install -q --disable-pip-version-check

# Tests start hundreds of processes, and each would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

# Tests run in several processes, the tests of a file one after the other in one of them.
# `make test WORKERS=0` runs them in the process of pytest itself.
WORKERS ?= $(shell nproc)
PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: build serve cluster test verify check lint docs install interop spark example screenshots bench bench-cluster soak hostile first-hour asan upgrade oldest clean

build: $(VENV)/.built

serve: build
	exec $(BIN)/leveret serve --data-dir $(DATA)

# Three nodes and the ZooKeeper that coordinates them, until Ctrl-C (docs/guide/cluster.md).
cluster: build $(VENV)/.zookeeper
	exec $(BIN)/python -m examples.cluster.run --data $(DATA)-cluster

# All tests that start no process, and then, alone and one after the other, a few that do.
test: $(VENV)/.test
	$(BIN)/python -m pytest $(PARALLEL) -m "not (processes or soak)"
	$(BIN)/python -m pytest -m smoke

# All the other tests, in stages: tests/stages.py. `make verify STAGES="kills guide"` runs two.
verify: $(VENV)/.test
	$(BIN)/python -m tests.verify --json build/verify.json $(STAGES)

# While working: `make lint`, and the tests that start no process and have no node with a disk, with
# fewer examples from Hypothesis, and others each time.
DISK = $(addprefix --ignore=tests/,storage contracts recovery cli node features/delay/test_crash.py)
check: lint
	LEVERET_TEST_EXAMPLES=0.1 $(BIN)/python -m pytest $(PARALLEL) -q --hypothesis-profile=random \
		-m "not (processes or soak)" $(DISK)

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# Writes docs/compatibility.md anew, when tests have come, gone or changed their names, and the
# reference of settings, when these have.
docs: $(VENV)/.test
	$(BIN)/python -m tests.compatibility
	$(BIN)/python -m leveret.config.reference docs

# For use, not for development: the command `leveret` in the active virtual environment, or in one of
# its own with a link on the path (.ci/install says where).
install: build
	rm -rf build/wheel
	$(BIN)/pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w build/wheel .
	PYTHON=$(PYTHON) .ci/install build/wheel/leveret-*.whl

interop: $(VENV)/.test
	$(BIN)/python -m tests.verify $@

# The data source in a real Spark, on Java 17: the newest one, and then, what tests Spark's own
# interfaces with the oldest that pyproject.toml allows.
spark: $(VENV)/.test
	$(BIN)/python -m tests.verify spark spark-oldest

# An application, a streaming query and a page of its figures, with a node of their own.
example: $(VENV)/.spark
	$(BIN)/python -m examples.orders.run

# Pictures of the web UI for the documentation, made anew: light, dark, and as on a phone. It takes
# some minutes, as they are of a node at work.
screenshots: $(VENV)/.interop
	.ci/packages pngquant
	$(BIN)/python -m interop_tests.ui.pictures docs/images

# bench/README.md says how to read it.
bench: $(VENV)/.test
	.ci/packages rabbitmq-server
	$(BIN)/python -m bench

# Three nodes beside three of RabbitMQ, and the lease of a node under full load: 45 minutes.
bench-cluster: $(VENV)/.test $(VENV)/.zookeeper
	.ci/packages rabbitmq-server
	$(BIN)/python -m bench.cluster
	$(BIN)/python -m bench.lease --session-ms 4000
	$(BIN)/python -m bench.lease --session-ms 2000

soak: $(VENV)/.test
	$(BIN)/python -m pytest -m soak

# Attacks with several seeds each, and what a second client and the memory felt of them, as a table.
# One again: make hostile SEED=3 ATTACKS=TopicPatterns
hostile: $(VENV)/.test
	HOSTILE_SEED="$(SEED)" $(BIN)/python -m pytest -m hostile -k "$(ATTACKS)" tests/hostile

# The README followed in a Debian of its own, in which nothing is installed; as root.
first-hour: $(VENV)/.test
	.ci/packages debootstrap
	$(BIN)/python -m pytest -m clean_root tests/clean_root

# The compiled modules once more under AddressSanitizer, in a copy beside the usual build.
asan: $(VENV)/.test
	PYTHON=$(CURDIR)/$(BIN)/python tests/run_asan.sh $(wildcard tests/amqp tests/core tests/perf tests/ports \
		$(addprefix tests/storage/test_,commit.py key_map.py log.py log_machine.py segment_writer.py tail.py) \
		$(addprefix tests/features/,range_reads/test_columns.py staged_batches/test_chunk_rows.py) \
		$(addprefix tests/spark/test_,content_headers.py json_shape.py property_columns.py))

# The newest releases that pyproject.toml allows, written down, and everything run with them.
upgrade:
	.ci/lock
	.ci/run
	$(MAKE) verify

# The tests once with the oldest releases that pyproject.toml allows.
oldest:
	.ci/oldest

clean:
	rm -rf $(VENV) $(VENV)-* build dist *.egg-info interop_tests/node_modules
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find leveret \( -name '*.so' -o -name '*.c' -o -name '*.cpp' -o -name '*.html' \) -delete
	find . -name __pycache__ -prune -exec rm -rf {} +

# What runs and what compiles, and nothing else: a broker needs no tools of ours.
$(VENV)/.run: requirements/run.txt requirements/build.txt
	@echo "Installing what the broker needs into $(VENV)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check --require-hashes \
		-r requirements/run.txt -r requirements/build.txt
	touch $@

$(VENV)/.built: $(VENV)/.run pyproject.toml setup.py $(PYX)
	@echo "Compiling (the first time takes a minute or two, another checkout of the same some seconds)"
	$(BIN)/python setup.py -q build_ext --inplace
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.test: requirements/test.txt $(VENV)/.built
	@echo "Installing what tests and checks need into $(VENV)"
	$(PIP) --require-hashes -r requirements/test.txt
	touch $@

# pyspark is a source package of 450 MB: building it takes a minute.
$(VENV)/.spark: requirements/spark.txt $(VENV)/.test
	command -v java >/dev/null || .ci/packages openjdk-17-jre-headless
	$(PIP) --require-hashes -r requirements/spark.txt
	touch $@

# Beside the newest one in a directory of its own, which goes before it where PYTHONPATH names it.
$(VENV)/spark-4.2/.installed: requirements/spark-4.2.txt $(VENV)/.spark
	rm -rf $(@D)
	$(PIP) --require-hashes --target $(@D) -r requirements/spark-4.2.txt
	touch $@

# The server that `make cluster` and tests of coordination start.
$(VENV)/.zookeeper: $(VENV)/.run
	command -v java >/dev/null || .ci/packages openjdk-17-jre-headless
	.ci/packages libzookeeper-java
	touch $@

# What a cluster is tested with: its coordinator, and the Java client.
$(VENV)/.cluster: $(VENV)/.test $(VENV)/.zookeeper
	command -v javac >/dev/null || .ci/packages default-jdk-headless
	.ci/packages librabbitmq-client-java
	touch $@

# Other people's clients, and the other broker to compare with.
$(VENV)/.interop: requirements/interop.txt $(VENV)/.test
	.ci/packages rabbitmq-server amqp-tools librabbitmq-client-java ruby-bunny \
		golang-go golang-github-rabbitmq-amqp091-go-dev prometheus chromium
	command -v javac >/dev/null || .ci/packages default-jdk-headless
	command -v npm >/dev/null || .ci/packages npm  # Node's own distribution brings it along
	$(PIP) --require-hashes -r requirements/interop.txt
	npm install --silent --no-audit --no-fund --no-package-lock --prefix interop_tests
	touch $@
