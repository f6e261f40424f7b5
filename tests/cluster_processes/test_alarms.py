"""The disk alarm of a real node blocks publishers of another one, as RabbitMQ's alarms do."""

import json
import subprocess
import sys

import pika

from tests.cluster_processes.launcher import LocalCluster
from tests.support.waiting import wait_until


def alarms(node):
    command = [sys.executable, "-m", "leveret", "alarms", "--json", "--data-dir", str(node.data)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    return done.returncode, json.loads(done.stdout)


def test_publishers_of_another_node_are_blocked_until_there_is_room(tmp_path):
    with LocalCluster(tmp_path, 2) as cluster:
        first, second = cluster.nodes.values()
        told = []
        # It answers no heartbeat while the other node restarts.
        parameters = pika.ConnectionParameters(*first.amqp, heartbeat=0)
        with pika.BlockingConnection(parameters) as connection:
            connection.add_on_connection_blocked_callback(lambda _, method: told.append(method))
            connection.add_on_connection_unblocked_callback(lambda _, method: told.append(method))
            channel = connection.channel()
            channel.queue_declare("q", durable=True)
            channel.basic_publish("", "q", b"m")
            cluster.settings["disk_free_bytes_min"] = 1 << 60  # of no disk
            second.restart()

            def heard(count):
                connection.process_data_events()
                return len(told) == count

            wait_until(lambda: heard(1), "the publisher is blocked")
            assert told[0].method.reason == "low on disk"
            ((status, names),) = [alarms(first)]
            assert (status, len(names)) == (1, 1)
            assert names[0].endswith(": disk")
            assert alarms(second) == (1, ["disk"])
            second.kill()  # its alarm goes with it
            wait_until(lambda: heard(2), "the publisher may publish again")
            assert isinstance(told[1].method, pika.spec.Connection.Unblocked)
            assert alarms(first) == (0, [])
