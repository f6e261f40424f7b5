"""The keys of virtual hosts by HTTP, on a node that has a master key."""

HERE = "/leveret/encryption"


def states(http, vhost="%2F"):
    return [row["state"] for row in http.get(f"{HERE}/{vhost}").json()]


def test_a_virtual_host_is_encrypted_rotated_and_plain_again(http):
    assert states(http) == ["plain"]
    assert http.post(f"{HERE}/%2F/rotate").status_code == 400  # it has no key
    assert http.post(f"{HERE}/%2F/enable").status_code == 204
    assert http.post(f"{HERE}/%2F/enable").status_code == 204  # it is
    [first] = [row for row in http.get(HERE).json() if row["state"] == "active"]
    assert (first["vhost"], first["segments"]) == ("/", 0)
    key = http.post(f"{HERE}/%2F/rotate").json()["key"]
    rows = {row["key"]: row["state"] for row in http.get(f"{HERE}/%2F").json()}
    assert rows[key] == "active"
    assert rows.keys() - {key} <= {first["key"]}
    assert http.post(f"{HERE}/%2F/disable").status_code == 204
    assert "active" not in states(http)
    assert "encryption.rotate" in http.get("/leveret/audit").text


def test_what_is_not_there(http):
    for verb in ("enable", "disable", "rotate"):
        assert http.post(f"{HERE}/none/{verb}").status_code == 404
    assert http.get(f"{HERE}/none").status_code == 404
    assert http.post(f"{HERE}/%2F/rotate_master").status_code == 404
