"""Policies and parameters that have no effect, and documents that differ, in the node's log."""

import json
from dataclasses import replace

import pytest

from leveret.mgmt_ui.control import COMMAND_LINE
from leveret.mgmt_ui.operations.dispatcher import perform
from leveret.mgmt_ui.operations.runtime import Runtime
from tests.support.site import Site

POLICY = {"vhost": "/", "name": "p", "pattern": "", "priority": 0, "apply_to": "all"}


@pytest.fixture
def site():
    made = Site()
    runtime = Runtime(made.stage.configuration, 0, lambda: made.stage.now)
    made.context = replace(made.context, runtime=runtime)
    return made


async def done(site, operation, **parameters):
    request = {"operation": operation, "parameters": parameters}
    answer = await perform(site.context, request, COMMAND_LINE)
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
    of_vhost = await done(
        site, "parameter.set", vhost="/", component="federation-upstream", name="s", value={}
    )
    of_node = await done(site, "global_parameter.set", name="g", value=1)
    (upstream,), (global_,) = of_vhost["warnings"], of_node["warnings"]
    assert caplog.messages == [
        f"parameter 's' in vhost '/' was set: {upstream}",
        f"global parameter 'g' was set: {global_}",
    ]


async def test_what_has_an_effect_is_not_logged(site, caplog):
    result = await done(site, "policy.set", **POLICY, definition={"max-length": 1}, operator=False)
    assert result == {"warnings": []}
    assert not caplog.messages


async def test_import_logs_what_exists_otherwise_up_to_a_number(site, caplog):
    rows = [{"vhost": "/", "name": f"q{number}"} for number in range(1005)]
    await done(site, "definitions.import", document={"queues": rows}, vhost=None, strict=False)
    caplog.clear()
    document = {"queues": [{**row, "auto_delete": True} for row in rows]}
    told = await done(site, "definitions.import", document=document, vhost=None, strict=False)
    assert told["imported"] == {}
    assert len(told["kept"]) == 1001
    assert told["kept"][-1] == "and 5 more"
    assert len(caplog.messages) == 21
    assert "--dry-run" in caplog.messages[-1]
    assert len(json.dumps(told)) < 1 << 20
