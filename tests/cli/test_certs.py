"""`leveret certs`: what it writes, and what it refuses to overwrite."""

import json
import ssl
import stat

from cryptography import x509
from typer.testing import CliRunner

from leveret.cli.app import app
from leveret.cli.certs import VALID_DAYS

FILES = sorted(f"{name}{part}.pem" for name in ("ca", "server", "client") for part in ("", "-key"))


def run(*arguments):
    return CliRunner().invoke(app, ["certs", *map(str, arguments)])


def test_certificates_verify_and_keys_are_private(tmp_path):
    directory = tmp_path / "made" / "here"
    result = run(directory, "--host", "broker.example", "--host", "192.0.2.1", "--user", "probe")
    assert result.exit_code == 0, result.output
    assert "broker.example" in result.output
    assert sorted(file.name for file in directory.iterdir()) == FILES
    for name in ("ca", "server", "client"):
        assert stat.S_IMODE((directory / f"{name}-key.pem").stat().st_mode) == 0o600
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(directory / f"{name}.pem", directory / f"{name}-key.pem")
    authority = x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes())
    for name in ("server", "client"):
        certificate = x509.load_pem_x509_certificate((directory / f"{name}.pem").read_bytes())
        certificate.verify_directly_issued_by(authority)
    assert certificate.subject.rfc4514_string() == "CN=probe"


def test_the_server_is_known_under_all_its_names(tmp_path):
    run(tmp_path, "--host", "broker.example", "--host", "192.0.2.1")
    certificate = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["broker.example", "localhost"]
    addresses = [str(each) for each in names.get_values_for_type(x509.IPAddress)]
    assert addresses == ["192.0.2.1", "127.0.0.1", "::1"]


def test_nothing_is_overwritten_unasked(tmp_path):
    (tmp_path / "client-key.pem").write_text("precious")
    refused = run(tmp_path)
    assert refused.exit_code == 1
    assert "client-key.pem exists; --force overwrites it" in refused.output
    assert [file.name for file in tmp_path.iterdir()] == ["client-key.pem"]
    assert run(tmp_path, "--force").exit_code == 0
    assert stat.S_IMODE((tmp_path / "client-key.pem").stat().st_mode) == 0o600


def test_names_that_cannot_stand_in_a_certificate(tmp_path):
    refused = run(tmp_path / "x", "--host", "bücher.example")
    assert refused.exit_code == 1
    assert "cannot make certificates" in refused.output
    assert not (tmp_path / "x").exists()


def test_programs_are_told_where_the_files_are(tmp_path):
    made = json.loads(run(tmp_path, "--user", "probe", "--json").stdout)
    assert (made.pop("user"), made.pop("valid_days")) == ("probe", VALID_DAYS)
    for name in ("ca", "server", "client"):
        certificate = made.pop(f"{name}_certificate_file")
        assert certificate == str(tmp_path / f"{name}.pem")
        key = made.pop(f"{name}_key_file")
        assert key == str(tmp_path / f"{name}-key.pem")
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    assert made == {}
