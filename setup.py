"""Builds the compiled modules; everything else about the package stands in pyproject.toml.

A module that was compiled of the same sources before, in this or another checkout, comes from a
cache: `~/.cache/leveret/modules`, or the directory that BUILD_CACHE names, or from none if this is
empty.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path

import Cython
from Cython.Build import cythonize
from Cython.Build.Dependencies import create_dependency_tree
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

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
RECORD = Path("build", "modules.json")  # digests of the modules in the source tree
MODULE = ".module"
CHECKSUM_BYTES = hashlib.sha256().digest_size
CACHE_BYTES_MAX = 200_000_000  # some fifty builds; the least recently used modules go first


class ModuleCache:
    """Compiled modules, each under a digest of all that it was made of and with.

    A file has a checksum before the module, so that none is used which a crash has cut short.
    """

    def __init__(self) -> None:
        self._directory = cache_directory()

    def fetch(self, digest: str, module: Path) -> bool:
        """Write a module; False if it is not here."""
        if self._directory is None:
            return False
        stored = self._directory / f"{digest}{MODULE}"
        try:
            content = stored.read_bytes()
            os.utime(stored)  # used now
        except OSError:
            return False
        checksum, compiled = content[:CHECKSUM_BYTES], content[CHECKSUM_BYTES:]
        if hashlib.sha256(compiled).digest() != checksum:
            return False
        replace(module, compiled)
        return True

    def store(self, digest: str, module: Path) -> None:
        """Keep a module, where that is possible."""
        if self._directory is not None:
            compiled = module.read_bytes()
            with contextlib.suppress(OSError):
                self._directory.mkdir(parents=True, exist_ok=True)
                content = hashlib.sha256(compiled).digest() + compiled
                replace(self._directory / f"{digest}{MODULE}", content)
                self._remove_oldest(self._directory)

    @staticmethod
    def _remove_oldest(directory: Path) -> None:
        """Remove what was used longest ago, down to CACHE_BYTES_MAX."""
        files = [(file.stat(), file) for file in directory.glob(f"*{MODULE}*")]
        kept = 0
        for stat, file in sorted(files, key=lambda found: -found[0].st_mtime):
            kept += stat.st_size
            if kept > CACHE_BYTES_MAX:
                file.unlink(missing_ok=True)


def cache_directory() -> Path | None:
    """Return where modules are kept; None for nowhere."""
    if SANITIZE:  # whose reports name lines of the generated files
        return None
    named = os.environ.get("BUILD_CACHE")
    if named is not None:
        return Path(named) if named else None
    if home := os.environ.get("XDG_CACHE_HOME"):
        return Path(home, "leveret", "modules")
    try:
        return Path.home() / ".cache" / "leveret" / "modules"
    except RuntimeError:  # a user without a home
        return None


def replace(file: Path, content: bytes) -> None:
    """Write a file as a whole or not at all."""
    partial = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        partial.write_bytes(content)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def made_with() -> str:
    """Return what decides, beside its sources, how a module is compiled."""
    names = ("CC", "CXX", "CFLAGS", "CPPFLAGS", "LDFLAGS", "LDSHARED")
    variables = {name: os.environ.get(name) for name in names}
    compiler = variables["CC"] or sysconfig.get_config_var("CC")
    try:
        version = subprocess.check_output([*compiler.split(), "--version"])  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        version = b""  # what cannot be asked may compile all the same; else the build says why
    here = (sys.version, platform.machine(), platform.libc_ver(), Cython.__version__)
    return repr((here, compiler, version, variables, COMPILE, LINK, DIRECTIVES))


def digest_of(ext: Extension) -> str:
    """Return what a module's compiled form depends on, as a digest."""
    digest = hashlib.sha256(f"{MADE_WITH} {ext.name}".encode())
    if ext.name != SHARED:  # Cython's own
        files = create_dependency_tree().all_dependencies(ext.sources[0])
        for file in sorted(file for file in files if not Path(file).is_absolute()):
            content = Path(file).read_bytes()
            digest.update(f"{file} {len(content)} ".encode() + content)
    return digest.hexdigest()


def read_record() -> dict[str, str]:
    """Return the digests of the modules in the source tree, by their names."""
    try:
        return json.loads(RECORD.read_text())
    except (OSError, ValueError):
        return {}


class BuildOnce(build_ext):
    """Compiles what has changed, and says so: it is a minute in which nothing else is to be seen.

    A wheel takes the modules that are in the source tree.
    """

    done = 0

    def build_extension(self, ext: Extension) -> None:
        """Compile `ext`, or copy it from the source tree if it is there."""
        target = Path(self.get_ext_fullpath(ext.name))
        if ext not in compiled:
            self.mkpath(str(target.parent))
            self.copy_file(str(in_place(ext)), str(target))
            return
        self.force = True  # whatever its times say, what is there was made otherwise
        super().build_extension(ext)
        if digest_of(named[ext.name]) == digests[ext.name]:  # nobody has edited it meanwhile
            cache.store(digests[ext.name], target)
        self.done += 1
        # In one piece: several threads compile.
        sys.stdout.write(f"compiled {self.done} of {len(compiled)}: {ext.name}\n")
        sys.stdout.flush()

    def copy_extensions_to_source(self) -> None:
        """Copy them as setuptools does, and write down what they were made of."""
        super().copy_extensions_to_source()
        RECORD.parent.mkdir(exist_ok=True)
        replace(RECORD, json.dumps(digests).encode())


def in_place(ext: Extension) -> Path:
    """Return the compiled module's place in the source tree."""
    return Path(*ext.name.split(".")).with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))


def is_there(ext: Extension) -> bool:
    """Whether the source tree has the module now, if need be out of the cache."""
    digest, module = digests[ext.name], in_place(ext)
    if module.exists() and RECORDED.get(ext.name) == digest:
        return True
    return cache.fetch(digest, module)


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
MADE_WITH, RECORDED = made_with(), read_record()
cache = ModuleCache()
named = {ext.name: ext for ext in extensions}
digests = {name: digest_of(ext) for name, ext in named.items()}
there = [ext for ext in extensions if is_there(ext)]
compiled = cythonize(
    [ext for ext in extensions if ext not in there],
    nthreads=os.cpu_count(),
    force=True,
    show_all_warnings=False,
    shared_utility_qualified_name=SHARED,
    compiler_directives=DIRECTIVES,
)

setup(
    cmdclass={"build_ext": BuildOnce},
    options={"build_ext": {"parallel": os.cpu_count()}},
    ext_modules=[*compiled, *there],
)
