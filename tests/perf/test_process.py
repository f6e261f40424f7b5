import os
import socket
import subprocess
import sys

import pytest

from leveret.perf.process import ProcessError, listener_pid, usage


def test_the_listener_of_a_port_is_found():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listener_pid(port) == os.getpid()
    with pytest.raises(ProcessError, match=str(port)):
        listener_pid(port)


@pytest.mark.usefixtures("processes")
def test_usage_counts_children():
    alone = usage(os.getpid())
    code = "import sys; sum(range(10**7)); print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout.readline() == b"up\n"
        both = usage(os.getpid())
        child_alone = usage(child.pid)
    assert both.resident_bytes >= child_alone.resident_bytes + alone.resident_bytes // 2
    assert both.cpu_us >= alone.cpu_us + child_alone.cpu_us
    assert child_alone.cpu_us > 0


@pytest.mark.usefixtures("processes")
def test_a_process_that_is_not_there_is_named():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    with pytest.raises(ProcessError, match=str(child.pid)):
        usage(child.pid)
