"""A node that runs, for pages whose work needs one."""

import re
from contextlib import contextmanager

from tests.harness.broker import BrokerProcess


@contextmanager
def running_node(directory, **settings):
    """Its address, as a browser has it."""
    with BrokerProcess(directory / "data", **settings) as broker:
        found = re.findall(r"^ready .*http=(\S+)", broker.log(), re.MULTILINE)
        yield f"http://{found[-1]}"
