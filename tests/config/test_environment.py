import pytest

from leveret.config import ConfigurationError, load


def loaded(**variables):
    return load(environ={f"LEVERET_{name}": value for name, value in variables.items()})


@pytest.mark.parametrize("value", ['["guest", "probe"]', "guest,probe", "guest, probe"])
def test_names_are_a_list_of_json_or_have_commas(value):
    assert loaded(LOOPBACK_USERS=value).configuration.loopback_users == ("guest", "probe")


def test_nobody_is_an_empty_list():
    assert loaded(LOOPBACK_USERS="[]").configuration.loopback_users == ()


@pytest.mark.parametrize("value", ["['guest']", '"guest"', "{guest}", '["guest"', "[guest]"])
def test_list_in_another_notation_does_not_become_a_user_of_that_name(value):
    with pytest.raises(ConfigurationError, match="LEVERET_LOOPBACK_USERS"):
        loaded(LOOPBACK_USERS=value)


def test_empty_variable_counts_as_not_set_and_is_told():
    found = loaded(LOOPBACK_USERS="", HOST="")
    assert found.configuration.loopback_users == ("guest",)
    assert found.configuration.host == "127.0.0.1"
    assert "LEVERET_LOOPBACK_USERS is empty and counts as not set" in found.notices[0]


def test_unknown_variable_is_refused_with_what_was_meant():
    with pytest.raises(ConfigurationError, match="did you mean LEVERET_MESSAGE_BYTES_MAX"):
        loaded(MESAGE_BYTES_MAX="10")


def test_variables_of_service_links_stop_nothing_and_are_told():
    found = loaded(
        SERVICE_HOST="10.0.0.1",
        SERVICE_PORT="5672",
        SERVICE_PORT_AMQP="5672",
        PORT="tcp://10.0.0.1:5672",
        PORT_5672_TCP="tcp://10.0.0.1:5672",
        PORT_5672_TCP_PROTO="tcp",
        PORT_5672_TCP_PORT="5672",
        PORT_5672_TCP_ADDR="10.0.0.1",
        HTTP_PORT="tcp://10.0.0.2:15672",
        HTTP_SERVICE_HOST="10.0.0.2",
    )
    assert (found.configuration.port, found.configuration.http_port) == (5672, 15672)
    (notice,) = found.notices
    assert "enableServiceLinks: false" in notice


def test_wrong_port_names_its_variable():
    text = r"setting 'port' \(environment variable LEVERET_PORT\): expected the number of a port"
    with pytest.raises(ConfigurationError, match=text):
        loaded(PORT="amqp")


def test_table_is_json():
    found = loaded(AUTH_OAUTH2_SCOPE_ALIASES='{"admin": "broker.tag:administrator"}')
    assert found.configuration.auth_oauth2_scope_aliases == {"admin": "broker.tag:administrator"}


def test_settings_file_may_be_named(tmp_path):
    file = tmp_path / "leveret.toml"
    file.write_text('port = 5673\ndisk_free_bytes_min = "1GB"\n')
    found = loaded(CONFIG=str(file))
    assert (found.configuration.port, found.source("port")) == (5673, str(file))
    assert found.configuration.disk_free_bytes_min == 10**9
    assert found.source("host") == "default"
