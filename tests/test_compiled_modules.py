"""The compiled modules are stripped: what a debugger reads is four fifths of an unstripped one."""

import os
import struct
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import leveret

PACKAGE = Path(leveret.__file__).parent
SOURCES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.pyx"))
ELF_64_LITTLE = b"\x7fELF\x02\x01"

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="other formats than ELF"),
    pytest.mark.skipif(
        os.environ.get("LEVERET_SANITIZE") == "1", reason="AddressSanitizer names lines"
    ),
]


def sections(path):
    """Names of an ELF file's sections (64 bits, little-endian).

    Its header tells where the table of section headers is, how long one of them is, how many there
    are, and which of them is of the section with all names.
    """
    raw = path.read_bytes()
    if not raw.startswith(ELF_64_LITTLE):
        pytest.skip("ELF of another machine")
    (table,) = struct.unpack_from("<Q", raw, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", raw, 0x3A)
    headers = [struct.unpack_from("<II16xQQ", raw, table + size * n) for n in range(count)]
    _, _, start, length = headers[names_at]
    names = raw[start : start + length]
    return {names[name : names.index(b"\0", name)].decode() for name, *_ in headers}


def compiled(source):
    """The module that was compiled of a source."""
    name = source.with_suffix(EXTENSION_SUFFIXES[0])
    return PACKAGE / name


@pytest.mark.parametrize("source", [*SOURCES, Path("cython_shared.c")], ids=str)
def test_modules_have_no_debug_information(source):
    found = sections(compiled(source))
    assert ".text" in found
    assert ".symtab" not in found
    assert not {name for name in found if name.startswith(".debug")}
