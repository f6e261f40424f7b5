import errno
import os
import stat
from pathlib import Path

import pytest

from leveret.storage.files import RealFileSystem, read_file, write_file
from tests.storage.faulty_files import FaultyFileSystem


def test_files_are_for_the_user_of_the_node_alone(tmp_path):
    """The keyring and the logs, whatever the umask: what doctor asks for."""
    umask = os.umask(0o002)
    try:
        files = RealFileSystem()
        files.close(files.open(tmp_path / "keyring.json", create=True))
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "keyring.json").stat().st_mode) == 0o600


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", range(1, 5))
def test_a_file_that_cannot_be_replaced_is_as_before_with_nothing_beside_it(call, error):
    """Creating the draft, writing it, flushing it and renaming it are refused in turn."""
    files, path = FaultyFileSystem(), Path("/data/some.index")
    files.make_directory(path.parent)
    write_file(files, path, b"before", flush=True)
    files.fail_at, files.error = files.calls + call, error
    with pytest.raises(OSError, match=os.strerror(error)):
        write_file(files, path, b"after", flush=True)
    assert files.list_names(path.parent) == [path.name]
    assert read_file(files, path) == b"before"
