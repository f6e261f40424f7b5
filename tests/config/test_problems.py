import pytest

from leveret.config import ConfigurationError, load


def problem(**values):
    with pytest.raises(ConfigurationError) as caught:
        load(overrides=values, environ={})
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            {"auth_backends": ["ldap"]},
            (
                "setting 'auth_backends' (option --auth-backends): "
                "expected 'internal', 'oauth2' or 'http', not 'ldap'"
            ),
        ),
        (
            {"auth_backends": []},
            "setting 'auth_backends' (option --auth-backends): must name at least one, not '[]'",
        ),
        (
            {"durability": "maybe"},
            "setting 'durability' (option --durability): expected 'fsync' or 'os', not 'maybe'",
        ),
        (
            {"port": 70000},
            "setting 'port' (option --port): must be 65535 or less, not '70000'",
        ),
        (
            {"disk_free_bytes_min": "much"},
            (
                "setting 'disk_free_bytes_min' (option --disk-free-bytes-min): "
                "expected a number of bytes or a size such as 64MiB or 1GB, not 'much'"
            ),
        ),
        (
            {"heartbeat_seconds": "500ms"},
            (
                "setting 'heartbeat_seconds' (option --heartbeat-seconds): "
                "expected a whole number of seconds or a duration such as 500ms, 30s or 2h, "
                "not '500ms'"
            ),
        ),
        (
            {"http_delete": "perhaps"},
            "setting 'http_delete' (option --http-delete): expected true or false, not 'perhaps'",
        ),
        (
            {"tls_key_file": "/k.pem"},
            (
                "setting 'tls_key_file' (option --tls-key-file): "
                "comes together with 'tls_certificate_file', not '/k.pem'"
            ),
        ),
    ],
)
def test_problem_is_one_plain_sentence(values, text):
    assert problem(**values) == text


def test_secret_is_not_quoted(tmp_path):
    text = problem(encryption_key="c2VjcmV0", encryption_key_file=str(tmp_path / "key"))
    assert "c2VjcmV0" not in text
