#!/bin/sh
# Runs the tests of the compiled modules under AddressSanitizer: `make asan`, or tests/run_asan.sh [pytest arguments].
#
# The tree is copied and built there with LEVERET_SANITIZE=1, so that the normal build stays as it is;
# the copy is kept (build/asan), which makes the second run short. PYTHON chooses the interpreter, which
# needs the dev dependencies installed. Leaks are not looked for: the interpreter has its own.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-$PWD/.venv/bin/python}
COPY=${ASAN_COPY:-$PWD/build/asan}
SOURCE=$PWD

mkdir -p "$COPY"
# Objects of the normal build must not come along; what the sanitized build made may stay, while a
# source that has moved since must not.
find "$COPY" -type f ! -name '*.so' ! -name '*.c' ! -path "$COPY/build/*" -delete
tar -cf - --exclude='*.so' --exclude='*.c' --exclude='__pycache__' \
    leveret tests setup.py pyproject.toml | tar -xf - -C "$COPY"
cd "$COPY"
LEVERET_SANITIZE=1 "$PYTHON" setup.py -q build_ext --inplace

# PYTHONMALLOC=malloc: each object has a block of its own, so that running over its end is seen.
# Hypothesis draws at random here: this run looks for crashes, and each run may look elsewhere.
LD_PRELOAD=$(gcc -print-file-name=libasan.so) \
ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=1:strict_string_checks=1:allocator_may_return_null=1 \
PYTHONMALLOC=malloc PYTHONPATH=$COPY PYTHONDONTWRITEBYTECODE=1 \
    exec "$PYTHON" -m pytest -q -p no:cacheprovider -p no:randomly --hypothesis-profile=random --timeout=600 "${@:-tests/amqp}"
