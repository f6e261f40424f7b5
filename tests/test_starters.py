"""`make check` leaves out the tests that start processes, and no others."""

import json
import subprocess
import sys
from types import ModuleType

import pytest

from tests.support.starters import Starters


def module(name, **names):
    made = ModuleType(name)
    vars(made).update(names)
    return made


def starts(**names):
    return Starters().include_names(vars(module("tests.one", **names)))


@pytest.mark.parametrize("value", [subprocess, subprocess.run, subprocess.Popen])
def test_who_imports_subprocess_starts_processes(value):
    assert starts(value=value)


def test_who_imports_something_else_does_not():
    assert not starts(json=json, load=json.load, pytest=pytest, text="subprocess")


def test_who_imports_a_helper_that_does_starts_processes(monkeypatch):
    class Node:
        __module__ = "tests.helper"

    helper = module("tests.helper", subprocess=subprocess, Node=Node)
    monkeypatch.setitem(sys.modules, "tests.helper", helper)
    assert starts(helper=helper)
    assert starts(Node=Node)
    monkeypatch.setitem(sys.modules, "tests.between", module("tests.between", Node=Node))
    assert starts(there=sys.modules["tests.between"])


def test_modules_may_import_each_other(monkeypatch):
    one, other = module("tests.one"), module("tests.other")
    one.other, other.one = other, one
    monkeypatch.setitem(sys.modules, "tests.one", one)
    monkeypatch.setitem(sys.modules, "tests.other", other)
    assert not Starters().include_names(vars(one))


def test_the_mark_is_given(request):
    """The module of this test imports subprocess."""
    assert request.node.get_closest_marker("processes")
