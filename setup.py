"""Builds the compiled modules; everything else about the package stands in pyproject.toml.

A module that was compiled of the same sources before, in this or another checkout, comes from a
cache: `~/.cache/leveret/modules`, or the directory that LEVERET_BUILD_CACHE names; if the variable
is empty, there is no cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import Cython
from Cython.Build import cythonize
from Cython.Build.Dependencies import create_dependency_tree
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
LINK = ["-fsanitize=address"] if SANITIZE else ["-s"]
QUIET = ["-Wno-unreachable-code", "-Wno-unused-function", "-Wno-sign-compare"]  # generated code
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "freethreading_compatible": False,
}
SHARED = "leveret.cython_shared"  # what Cython would put into each module that has memory views
CACHE_BYTES_MAX = 200_000_000  # some fifty builds; the least recently used modules go first


class ModuleCache:
    """Compiled modules, each under a digest of all that it was made of and with.

    They are copied to another name beside and moved into place: whatever ends a copy early, no part
    of a module is ever loaded.
    """

    def __init__(self) -> None:
        home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        directory = os.environ.get("LEVERET_BUILD_CACHE", str(Path(home, "leveret", "modules")))
        self._directory = Path(directory) if directory else None
        self._digests: dict[str, str] = {}  # of the modules that were asked for, by their names
        self._made_with = repr(
            [
                *(Cython.__version__, sys.version, platform.machine(), platform.libc_ver()),
                *(COMPILE, LINK, DIRECTIVES, compiler()),
            ]
        )

    def fetch(self, ext: Extension) -> bool:
        """Bring a module into the source tree; False if it is not here."""
        if self._directory is None:
            return False
        self._digests[ext.name] = self._digest(ext)
        stored = self._directory / self._digests[ext.name]
        try:
            copy(stored, in_place(ext))
            os.utime(stored)  # used now
        except OSError:
            return False
        return True

    def store(self, name: str, module: Path) -> None:
        """Keep a module that was not there and has been compiled, where that is possible."""
        if self._directory is not None:
            with contextlib.suppress(OSError):
                self._directory.mkdir(parents=True, exist_ok=True)
                copy(module, self._directory / self._digests[name])
                self._remove_oldest(self._directory)

    def _digest(self, ext: Extension) -> str:
        digest = hashlib.sha256(f"{self._made_with} {ext.name}".encode())
        for file in made_of(ext):
            content = Path(file).read_bytes()
            digest.update(f"{file} {len(content)} ".encode() + content)
        return digest.hexdigest()

    @staticmethod
    def _remove_oldest(directory: Path) -> None:
        """Remove what was used longest ago, down to CACHE_BYTES_MAX."""
        files = [(file.stat().st_mtime, file.stat().st_size, file) for file in directory.iterdir()]
        kept = 0
        for _, size, file in sorted(files, reverse=True):
            kept += size
            if kept > CACHE_BYTES_MAX:
                file.unlink(missing_ok=True)


def compiler() -> list[object]:
    """Return what else decides how C is compiled: the compiler, its version, the user's flags."""
    command = os.environ.get("CC") or sysconfig.get_config_var("CC")
    flags = [os.environ.get(name) for name in ("CFLAGS", "CPPFLAGS", "LDFLAGS")]
    try:
        version = subprocess.check_output([*command.split(), "--version"])  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        version = b""  # what cannot be asked may compile all the same; else the build says why
    return [command, version, *flags]


def copy(source: Path, target: Path) -> None:
    """Copy a file as a whole or not at all."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copyfile(source, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def made_of(ext: Extension) -> list[str]:
    """Return the files of this tree that a module is compiled of: its source, what that imports."""
    if ext.name == SHARED:  # Cython's own
        return []
    files = create_dependency_tree().all_dependencies(ext.sources[0])
    return sorted(file for file in files if not Path(file).is_absolute())


def is_current(ext: Extension) -> bool:
    """Whether the source tree has the module already, newer than what it is made of."""
    module = in_place(ext)
    return module.exists() and not newer_group([*made_of(ext), __file__], str(module))


class BuildOnce(build_ext):
    """Compiles what has changed, and says so: it is a minute in which nothing else is to be seen.

    A wheel takes the modules that were compiled in place.
    """

    done = 0

    def build_extension(self, ext: Extension) -> None:
        """Compile `ext`, or copy it from the source tree if it is there."""
        target = Path(self.get_ext_fullpath(ext.name))
        if ext not in compiled:
            self.mkpath(str(target.parent))
            self.copy_file(str(in_place(ext)), str(target))
            return
        super().build_extension(ext)
        cache.store(ext.name, target)
        self.done += 1
        # In one piece: several threads compile.
        sys.stdout.write(f"compiled {self.done} of {len(compiled)}: {ext.name}\n")
        sys.stdout.flush()


def in_place(ext: Extension) -> Path:
    """Return the compiled module's place in the source tree."""
    return Path(*ext.name.split(".")).with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))


def extension(name: str, source: str) -> Extension:
    """Describe one compiled module."""
    return Extension(name, [source], extra_compile_args=[*COMPILE, *QUIET], extra_link_args=LINK)


extensions = [
    *(
        extension(".".join(source.with_suffix("").parts), str(source))
        for source in sorted(Path("leveret").rglob("*.pyx"))
    ),
    extension(SHARED, SHARED.replace(".", "/") + ".c"),
]
cache = ModuleCache()
missing = [ext for ext in extensions if not is_current(ext) and not cache.fetch(ext)]
compiled = cythonize(
    missing,
    nthreads=os.cpu_count(),
    show_all_warnings=False,
    shared_utility_qualified_name=SHARED,
    compiler_directives=DIRECTIVES,
)

setup(
    cmdclass={"build_ext": BuildOnce},
    options={"build_ext": {"parallel": os.cpu_count()}},
    ext_modules=[*compiled, *(ext for ext in extensions if ext not in missing)],
)
