"""Recognition of Celery's tasks, and what is shown of them."""

import pytest

from leveret.mgmt_ui.pages.celery import task_of

# As Celery 5 sends mail.send.apply_async((17,), {"to": "anna"}, countdown=60).
HEADERS = {
    "lang": "py",
    "task": "mail.send",
    "id": "0c7e",
    "shadow": None,
    "eta": "2026-11-22T12:00:00+00:00",
    "expires": None,
    "group": None,
    "group_index": None,
    "retries": 0,
    "timelimit": [None, None],
    "root_id": "0c7e",
    "parent_id": None,
    "argsrepr": "(17,)",
    "kwargsrepr": "{'to': 'anna'}",
    "origin": "gen42@host",
    "ignore_result": False,
}


def test_what_is_said_of_a_task():
    task = task_of(HEADERS)
    assert task.call == "mail.send(17, {'to': 'anna'})"
    assert task.facts == {
        "Id": "0c7e",
        "ETA": "2026-11-22T12:00:00+00:00",
        "Root": "0c7e",
        "Origin": "gen42@host",
    }


@pytest.mark.parametrize(
    ("args", "kwargs", "call"),
    [
        ("()", "{}", "t()"),
        ("[1, 2]", "{}", "t(1, 2)"),
        ("('a (b', 2)", "{}", "t('a (b', 2)"),
        ("()", "{'a': 1}", "t({'a': 1})"),
        ("<Order 7>", None, "t(<Order 7>)"),  # an argsrepr of the application's own
        (None, None, "t()"),
        (17, [], "t()"),
    ],
)
def test_calls(args, kwargs, call):
    headers = {"task": "t", "id": "1", "lang": "py", "argsrepr": args, "kwargsrepr": kwargs}
    assert task_of(headers).call == call


def test_a_retry_is_told():
    assert task_of({**HEADERS, "retries": 2}).facts["Retries"] == "2"


@pytest.mark.parametrize(
    "headers",
    [
        None,
        [],
        {},
        {"task": "clean", "id": "7"},  # anybody's
        {"task": "clean", "eta": "soon"},
        {"task": 5, "id": "7", "eta": "soon"},
        {"task": "", "id": "7", "lang": "py"},
        {"task": "t", "id": 7, "lang": "py"},
    ],
)
def test_what_is_no_task(headers):
    assert task_of(headers) is None
