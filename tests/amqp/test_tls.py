"""The TLS context of new connections: from which files, and when they are read again."""

import datetime as dt
import shutil

import pytest

from leveret.amqp.tls import TlsContexts, make_context
from leveret.cli.certs import make_certificates
from leveret.config import Configuration, ConfigurationError
from leveret.ports.file_changes import FILES_CHECK_SECONDS


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def made(directory):
    make_certificates(directory, ["localhost"], "guest", dt.datetime.now(dt.UTC), overwrite=True)
    return directory


def configured(directory, **settings):
    return Configuration(
        tls_certificate_file=directory / "server.pem",
        tls_key_file=directory / "server-key.pem",
        tls_ca_file=directory / "ca.pem",
        **settings,
    )


def test_changed_files_are_noticed_after_a_while(tmp_path):
    clock = Clock()
    contexts = TlsContexts(configured(made(tmp_path)), clock)
    first = contexts.current()
    made(tmp_path)
    clock.now = FILES_CHECK_SECONDS - 1
    assert contexts.current() is first
    clock.now = FILES_CHECK_SECONDS
    second = contexts.current()
    assert second is not first
    clock.now *= 3
    assert contexts.current() is second


def test_files_that_do_not_fit_each_other_leave_what_there_was(tmp_path, caplog):
    clock = Clock()
    live, new = made(tmp_path / "live"), made(tmp_path / "new")
    contexts = TlsContexts(configured(live), clock)
    first = contexts.current()
    shutil.copy(new / "server.pem", live)
    clock.now += FILES_CHECK_SECONDS
    assert contexts.current() is first
    assert "the old ones are kept" in caplog.text
    shutil.copy(new / "server-key.pem", live)
    clock.now += FILES_CHECK_SECONDS
    second = contexts.current()
    assert second is not first
    (live / "server.pem").unlink()
    clock.now += FILES_CHECK_SECONDS
    assert contexts.current() is second


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"tls_key_file": "client-key.pem"}, "cannot use the TLS certificate"),
        ({"tls_key_file": "missing.pem"}, "cannot use the TLS certificate"),
        ({"tls_ca_file": "server-key.pem"}, "cannot use the certificates in"),
        ({"tls_ciphers": "NONE-SUCH"}, "'tls_ciphers' names no cipher"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path, settings, text):
    directory = made(tmp_path)
    values = {
        name: directory / value if name.endswith("_file") else value
        for name, value in settings.items()
    }
    configuration = configured(directory).model_copy(update=values)
    with pytest.raises(ConfigurationError, match=text):
        make_context(configuration)


@pytest.mark.parametrize(
    "settings",
    [
        {"tls_key_file": "x"},
        {"tls_certificate_file": "x"},
        {"tls_verify_peer": "optional"},
        {"plain_listener": False},
    ],
)
def test_settings_that_need_others(settings):
    with pytest.raises(ValueError, match="tls_"):
        Configuration(**settings)
