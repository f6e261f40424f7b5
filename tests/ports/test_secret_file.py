import pytest

from leveret.ports.secret_file import SECRET_FILE_BYTES_MAX, SecretFileError, read_secret_file


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o440])
def test_a_file_of_the_owner_or_the_group_is_read(tmp_path, mode):
    file = tmp_path / "secret"
    file.write_bytes(b"hush\n")
    file.chmod(mode)
    assert read_secret_file(file, "the secret") == b"hush\n"


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o601])
def test_a_file_of_others_is_refused(tmp_path, mode):
    file = tmp_path / "secret"
    file.write_bytes(b"hush\n")
    file.chmod(mode)
    with pytest.raises(SecretFileError) as caught:
        read_secret_file(file, "the secret")
    assert str(caught.value) == (
        f"the secret {file} has mode 0{mode:o}: others must not read it, "
        "nor its group write it; `chmod 600` it"
    )


def test_a_long_file_is_not_read_as_a_whole(tmp_path):
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_bytes(b"x" * 100_000)
    assert len(read_secret_file(file, "the secret")) == SECRET_FILE_BYTES_MAX + 1


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SecretFileError, match=r"cannot read the secret .*none: No such file"):
        read_secret_file(tmp_path / "none", "the secret")
