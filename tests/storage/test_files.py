import os
import stat

from leveret.storage.files import RealFileSystem


def test_files_are_for_the_user_of_the_node_alone(tmp_path):
    """The keyring and the logs, whatever the umask: what doctor asks for."""
    umask = os.umask(0o002)
    try:
        files = RealFileSystem()
        files.close(files.open(tmp_path / "keyring.json", create=True))
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "keyring.json").stat().st_mode) == 0o600
