"""Policies and parameters that have no effect in the node's log."""

from dataclasses import replace

import pytest

from leveret.mgmt_ui.control import COMMAND_LINE
from leveret.mgmt_ui.operations.performing import perform
from leveret.mgmt_ui.operations.runtime import Runtime
from tests.support.site import Site

POLICY = {"vhost": "/", "name": "p", "pattern": "", "priority": 0, "apply_to": "all"}


@pytest.fixture
def site():
    made = Site()
    runtime = Runtime(made.stage.configuration, 0, lambda: made.stage.now)
    made.administered = replace(made.administered, runtime=runtime)
    return made


async def done(site, operation, **parameters):
    request = {"operation": operation, "parameters": parameters}
    answer = await perform(site.administered, request, COMMAND_LINE)
    assert answer["ok"], answer
    return answer["result"]


@pytest.mark.parametrize("operator", [False, True])
async def test_policy_without_effect_is_told_and_logged(site, caplog, operator):
    definition = {"ha-mode": "all", "max-length": 1}
    (told,) = (await done(site, "policy.set", **POLICY, definition=definition, operator=operator))[
        "warnings"
    ]
    assert told.startswith("setting ha-mode of policies has no effect: ")
    kind = "operator policy" if operator else "policy"
    assert caplog.messages == [f"{kind} 'p' in vhost '/' was set: {told}"]


async def test_parameters_without_effect_are_told_and_logged(site, caplog):
    of_vhost = await done(site, "parameter.set", vhost="/", component="shovel", name="s", value={})
    of_node = await done(site, "global_parameter.set", name="g", value=1)
    (shovel,), (global_,) = of_vhost["warnings"], of_node["warnings"]
    assert caplog.messages == [
        f"parameter 's' in vhost '/' was set: {shovel}",
        f"global parameter 'g' was set: {global_}",
    ]


async def test_what_has_an_effect_is_not_logged(site, caplog):
    result = await done(site, "policy.set", **POLICY, definition={"max-length": 1}, operator=False)
    assert result == {"warnings": []}
    assert not caplog.messages
