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
            {**VHOST, "name": "s", "arguments": {"x-replicas": 1, "x-acks": "all"}},
        ],
        exchanges=[{**VHOST, "name": "e", "type": "x-delayed-message"}],
        global_parameters=[{"name": "cluster_name", "value": "c"}],
        parameters=[
            {**VHOST, "component": "alert", "name": "a", "value": {}},
            {**VHOST, "component": "vhost-limits", "name": "limits", "value": {}},
        ],
    )


@pytest.mark.parametrize("component", ["federation-upstream-set", "federation-upstream", "mystery"])
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
    [
        ("x-quorum-initial-group-size", 3),
        ("x-replicas", 3),
        ("x-acks", "leader"),
        ("x-min-isr", 2),
        ("x-queue-mode", "lazy"),
        ("x-mystery", 1),
    ],
)
def test_argument_of_queues(argument, value):
    (warning,) = told(queues=[{**VHOST, "name": "q", "arguments": {argument: value}}])
    assert argument in warning
    assert "(queues[0] 'q')" in warning


def test_replicas_have_an_effect_in_a_cluster():
    arguments = {"x-quorum-initial-group-size": 3, "x-min-isr": 2, "x-queue-leader-locator": "b"}
    queue = {**VHOST, "name": "q", "arguments": arguments}
    policy = {"replicas": 3, "acks": 2, "target-group-size": 3, "initial-cluster-size": 3}
    alone = warnings(parse({"queues": [queue]}))
    assert len(alone) == 3
    assert alone[0].startswith(
        "argument x-quorum-initial-group-size of queues has no effect: "
        "a node that is in no cluster has the only replica of every queue"
    )
    (told,) = warnings(parse({"queues": [queue]}), in_cluster=True)
    assert "x-queue-leader-locator" in told
    assert len(without_effect(PolicyDefinition("/", "p", "", policy))) == 4
    assert not without_effect(PolicyDefinition("/", "p", "", policy), in_cluster=True)


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
    rows = [{**VHOST, "component": "mystery", "name": f"s{n}", "value": {}} for n in range(10)]
    (warning,) = told(parameters=rows)
    assert warning.endswith("parameters[2] 's2' and 7 more)")


def test_single_definition_is_told_without_places():
    assert without_effect(ParameterDefinition("/", "mystery", "s", {})) == [
        "parameter of 'mystery' has no effect: no component of this name runs here"
    ]
    policy = PolicyDefinition("/", "p", "", {"ha-mode": "all", "max-length": 5})
    (told,) = without_effect(policy)
    assert told.startswith("setting ha-mode of policies has no effect: ")
    assert without_effect(ParameterDefinition("/", "alert", "a", {})) == []


@pytest.mark.parametrize("component", ["policy", "operator_policy", "vhost-limits"])
def test_what_is_not_set_as_a_parameter_is_told(component):
    (told,) = without_effect(ParameterDefinition("/", component, "n", {}))
    assert "is not set as a parameter" in told


def test_shovels_of_another_protocol_are_warned_of():
    ends = {"src-uri": "amqp://", "dest-uri": "amqp://", "src-queue": "q"}
    row = {**VHOST, "component": "shovel", "name": "move", "value": ends}
    assert not told(parameters=[row])
    other = {**ends, "dest-protocol": "amqp10", "dest-address": "a"}
    (warning,) = told(parameters=[{**row, "value": other}])
    assert warning == (
        "shovel of AMQP 1.0 has no effect: shovels speak AMQP 0-9-1 here, nothing is moved "
        "(parameters[0] 'move')"
    )
