"""A node that runs, for pages whose work needs one."""

from contextlib import contextmanager

from tests.harness.broker import BrokerProcess


@contextmanager
def running_node(directory, **settings):
    """Its address, as a browser has it."""
    with BrokerProcess(directory / "data", http=True, **settings) as broker:
        yield f"http://{broker.addresses['http']}"
