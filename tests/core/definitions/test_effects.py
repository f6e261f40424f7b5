"""Settings of RabbitMQ without effect here are named, each kind once."""

import pytest

from leveret.core.definitions.document import parse
from leveret.core.definitions.effects import warnings, without_effect
from leveret.ports.definitions import ParameterDefinition, PolicyDefinition

VHOST = {"vhost": "/"}


def told(**sections):
    return warnings(parse(sections))


def test_document_that_works_whole_is_not_warned_of():
    assert not told(
        policies=[{**VHOST, "name": "p", "pattern": "", "definition": {"message-ttl": 5}}],
        queues=[
            {**VHOST, "name": "q", "arguments": {"x-max-length": 5, "x-queue-mode": "default"}},
            {**VHOST, "name": "r", "arguments": {"x-quorum-initial-group-size": 1}},
        ],
        exchanges=[{**VHOST, "name": "e", "type": "x-delayed-message"}],
        global_parameters=[{"name": "cluster_name", "value": "c"}],
        parameters=[
            {**VHOST, "component": "alert", "name": "a", "value": {}},
            {**VHOST, "component": "vhost-limits", "name": "limits", "value": {}},
        ],
    )


@pytest.mark.parametrize("component", ["shovel", "federation-upstream", "mystery"])
def test_component_that_does_not_run_here(component):
    row = {**VHOST, "component": component, "name": "move", "value": {}}
    (warning,) = told(parameters=[row])
    assert warning.startswith(f"parameter of '{component}' has no effect: ")
    assert "(parameters[0] 'move')" in warning


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("ha-mode", "all"),
        ("queue-mode", "lazy"),
        ("federation-upstream-set", "all"),
        ("initial-cluster-size", 3),
        ("queue-master-locator", "min-masters"),
    ],
)
@pytest.mark.parametrize("operator", [False, True])
def test_setting_of_policies(setting, value, operator):
    policy = {"pattern": "", "definition": {setting: value}}
    if operator:
        row = {**VHOST, "component": "operator_policy", "name": "p", "value": policy}
        (warning,) = told(parameters=[row])
    else:
        (warning,) = told(policies=[{**VHOST, "name": "p", **policy}])
    assert warning.startswith(f"setting {setting} of policies has no effect: ")


@pytest.mark.parametrize(
    ("argument", "value"),
    [("x-quorum-initial-group-size", 3), ("x-queue-mode", "lazy"), ("x-mystery", 1)],
)
def test_argument_of_queues(argument, value):
    (warning,) = told(queues=[{**VHOST, "name": "q", "arguments": {argument: value}}])
    assert argument in warning
    assert "(queues[0] 'q')" in warning


def test_exchanges_of_unknown_types_are_said_to_be_left_out():
    found = told(
        exchanges=[
            {**VHOST, "name": "e", "type": "x-jms-topic"},
            {
                **VHOST,
                "name": "d",
                "type": "x-delayed-message",
                "arguments": {"x-delayed-type": "x-jms-topic"},
            },
        ],
    )
    assert len(found) == 2
    assert all("it is left out" in warning for warning in found)


def test_many_of_a_kind_are_one_sentence():
    rows = [{**VHOST, "component": "shovel", "name": f"s{n}", "value": {}} for n in range(10)]
    (warning,) = told(parameters=rows)
    assert warning.endswith("parameters[2] 's2' and 7 more)")


def test_single_definition_is_told_without_places():
    assert without_effect(ParameterDefinition("/", "shovel", "s", {})) == [
        "parameter of 'shovel' has no effect: there are no shovels, nothing is moved"
    ]
    policy = PolicyDefinition("/", "p", "", {"ha-mode": "all", "max-length": 5})
    (told,) = without_effect(policy)
    assert told.startswith("setting ha-mode of policies has no effect: ")
    assert without_effect(ParameterDefinition("/", "alert", "a", {})) == []


@pytest.mark.parametrize("component", ["policy", "operator_policy", "vhost-limits"])
def test_what_is_not_set_as_a_parameter_is_told(component):
    (told,) = without_effect(ParameterDefinition("/", component, "n", {}))
    assert "is not set as a parameter" in told
