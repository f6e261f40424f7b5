"""Builds the compiled modules; everything else about the package stands in pyproject.toml."""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

# LEVERET_SANITIZE=1 (make asan) builds with AddressSanitizer, which sees every byte out of bounds.
SANITIZE = os.environ.get("LEVERET_SANITIZE") == "1"
COMPILE = ["-O1", "-g", "-fsanitize=address", "-fno-omit-frame-pointer"] if SANITIZE else ["-O3"]
LINK = ["-fsanitize=address"] if SANITIZE else []
QUIET = ["-Wno-unreachable-code", "-Wno-unused-function", "-Wno-sign-compare"]  # generated code

extensions = [
    Extension(
        ".".join(source.with_suffix("").parts),
        [str(source)],
        extra_compile_args=[*COMPILE, *QUIET],
        extra_link_args=LINK,
    )
    for source in sorted(Path("leveret").rglob("*.pyx"))
]

setup(
    options={"build_ext": {"parallel": os.cpu_count()}},
    ext_modules=cythonize(
        extensions,
        nthreads=0,
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "freethreading_compatible": False,
        },
    ),
)
