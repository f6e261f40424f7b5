"""Sessions that are still signed in."""

import pytest

from leveret.auth.http import HttpRights
from leveret.core.access.permissions import AccessControl, InternalRights
from leveret.mgmt_ui import sessions as module
from leveret.mgmt_ui.sessions import SESSION_MS_MAX, SESSION_MS_MAX_ELSEWHERE, WebSessions
from leveret.ports.authentication import Login
from leveret.ports.definitions import UserDefinition


class Place:
    def __init__(self):
        self.now_ms = 1_000
        self.access = AccessControl()
        self.access.put_user(UserDefinition("u", "hash", ("management",)))
        self.sessions = WebSessions(self.access, lambda: self.now_ms)

    def open(self, user="u"):
        return self.sessions.open(InternalRights(self.access, user))

    def finds(self, session):
        return self.sessions.find(session.token) is session


def test_session_is_found_by_its_token_only():
    place = Place()
    session = place.open()
    assert place.finds(session)
    assert place.sessions.find("") is None
    assert place.sessions.find(session.csrf_token) is None


def test_tokens_are_never_the_same_and_not_shown():
    place = Place()
    one, two = place.open(), place.open()
    assert len({one.token, one.csrf_token, two.token, two.csrf_token}) == 4
    assert one.token not in repr(one)
    assert one.csrf_token not in repr(one)


def test_session_ends_with_its_time():
    place = Place()
    session = place.open()
    place.now_ms += SESSION_MS_MAX - 1
    assert place.finds(session)
    place.now_ms += 1
    assert not place.finds(session)
    assert len(place.sessions) == 0


def test_session_ends_with_the_proof():
    place = Place()
    rights = InternalRights(place.access, "u")
    rights.expires_at_ms = 2_000
    session = place.sessions.open(rights)
    assert place.finds(session)
    place.now_ms = 2_000
    assert not place.finds(session)


def test_session_ends_when_the_password_changes_or_the_user_goes():
    place = Place()
    session = place.open()
    place.access.put_user(UserDefinition("u", "hash", ()))
    assert place.finds(session)
    place.access.put_user(UserDefinition("u", "another", ()))
    assert not place.finds(session)
    session = place.open()
    place.access.remove_user("u")
    assert not place.finds(session)


def test_user_whom_others_know_has_no_password_here():
    place = Place()
    assert place.finds(place.open("of LDAP"))


@pytest.mark.parametrize("user", ["of a service", "u"])
def test_rights_of_which_nobody_tells_the_end_are_proved_anew_soon(user):
    place = Place()
    rights = HttpRights(None, Login(user, "p", "::1"), ("administrator",))
    session = place.sessions.open(rights)
    place.now_ms += SESSION_MS_MAX_ELSEWHERE - 1
    assert place.finds(session)
    place.now_ms += 1
    assert not place.finds(session)


def test_a_token_says_itself_when_it_ends():
    place = Place()
    rights = HttpRights(None, Login("of a token", "p", "::1"), ())
    rights.expires_at_ms = SESSION_MS_MAX
    session = place.sessions.open(rights)
    place.now_ms += SESSION_MS_MAX_ELSEWHERE
    assert place.finds(session)


def test_the_oldest_of_a_user_makes_room(monkeypatch):
    monkeypatch.setattr(module, "SESSIONS_PER_USER_MAX", 2)
    place = Place()
    other, first, second, third = place.open("other"), place.open(), place.open(), place.open()
    assert [place.finds(each) for each in (other, first, second, third)] == [
        True,
        False,
        True,
        True,
    ]


def test_the_oldest_of_all_makes_room(monkeypatch):
    monkeypatch.setattr(module, "SESSIONS_MAX", 2)
    place = Place()
    a, b, c = place.open("a"), place.open("b"), place.open("c")
    assert [place.finds(each) for each in (a, b, c)] == [False, True, True]


def test_what_has_ended_makes_room_first(monkeypatch):
    monkeypatch.setattr(module, "SESSIONS_MAX", 2)
    place = Place()
    place.access.put_user(UserDefinition("b", "hash", ()))
    a, b = place.open("a"), place.open("b")
    place.access.put_user(UserDefinition("b", "another", ()))
    c = place.open("c")
    assert [place.finds(each) for each in (a, b, c)] == [True, False, True]


def test_notices_are_said_once_and_bounded():
    session = Place().open()
    for number in range(20):
        session.tell(str(number))
    assert [notice.text for notice in session.take_notices()] == [str(n) for n in range(12, 20)]
    assert session.take_notices() == []
