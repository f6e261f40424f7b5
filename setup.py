"""Builds the compiled modules; everything else about the package stands in pyproject.toml."""

import os
import platform
import sysconfig
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

# LEVERET_SANITIZE=1 (make asan) builds with AddressSanitizer, which sees every byte out of bounds.
SANITIZE = os.environ.get("LEVERET_SANITIZE") == "1"
# Without debug information, which Python's own flags ask for: it is four fifths of the files' size
# and a fifth of the compiler's time.
COMPILE = ["-O1", "-g", "-fsanitize=address", "-fno-omit-frame-pointer"]
if not SANITIZE:
    COMPILE = ["-O3", "-g0"]
    # gcc copies what it knows to be short, as the 255 bytes of a short string, by `rep movs`, which
    # takes 30 ns to begin. The C library's memcpy takes 5.
    if platform.machine() == "x86_64" and "gcc" in (
        os.environ.get("CC") or sysconfig.get_config_var("CC") or ""
    ):
        COMPILE.append("-mmemcpy-strategy=libcall:-1:noalign")
LINK = ["-fsanitize=address"] if SANITIZE else ["-s"]
QUIET = ["-Wno-unreachable-code", "-Wno-unused-function", "-Wno-sign-compare"]  # generated code
SHARED = "leveret.cython_shared"  # what Cython would put into each module that has memory views


class BuildOnce(build_ext):
    """Compiles what has changed, and says so: it is a minute in which nothing else is to be seen.

    A wheel takes the modules that were compiled in place.
    """

    done = 0

    def build_extension(self, ext: Extension) -> None:
        """Compile `ext`, or copy it from the source tree if it is newer than its sources there."""
        in_place = Path(*ext.name.split(".")).with_name(Path(self.get_ext_filename(ext.name)).name)
        if not self.inplace and in_place.exists() and not newer_group(ext.sources, in_place):
            target = Path(self.get_ext_fullpath(ext.name))
            self.mkpath(str(target.parent))
            self.copy_file(in_place, target)
            return
        super().build_extension(ext)
        self.done += 1
        print(f"compiled {self.done} of {len(self.extensions)}: {ext.name}", flush=True)


def extension(name: str, source: str) -> Extension:
    """Describe one compiled module."""
    return Extension(name, [source], extra_compile_args=[*COMPILE, *QUIET], extra_link_args=LINK)


extensions = [
    extension(".".join(source.with_suffix("").parts), str(source))
    for source in sorted(Path("leveret").rglob("*.pyx"))
]

setup(
    cmdclass={"build_ext": BuildOnce},
    options={"build_ext": {"parallel": os.cpu_count()}},
    ext_modules=cythonize(
        [*extensions, extension(SHARED, SHARED.replace(".", "/") + ".c")],
        nthreads=os.cpu_count(),
        show_all_warnings=False,
        shared_utility_qualified_name=SHARED,
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
