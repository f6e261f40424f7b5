"""Jobs as commands: processes of their own, with a summary on standard output."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pika
import pyspark
import pytest

ROOT = Path(__file__).parents[1]
RUNNERS = {
    "leveret spark": [sys.executable, "-m", "leveret", "spark"],
    "python -m": [sys.executable, "-m", "leveret.spark.jobs"],
    "spark-submit": [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *("--master", "local[1]", str(ROOT / "leveret" / "spark" / "jobs" / "__main__.py")),
    ],
}


def job(node, *arguments, status=0, runner="leveret spark", **variables):
    """Run a job; return its standard output and standard error."""
    command = [*RUNNERS[runner], *arguments, "--servers", node.server]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LEVERET_PASSWORD": "guest", **variables}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def crates(channel, topic):
    for number in range(5):
        headers = {"x-partition-key": "a", "n": number}
        body = f'crate "{number}",\nheavy'.encode() if number else b"\xff\x00"
        properties = pika.BasicProperties(delivery_mode=2, headers=headers, message_id=f"m{number}")
        channel.basic_publish("", topic, body, properties)
    return topic


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_job_prints_its_summary_and_nothing_else(node, crates, tmp_path, runner):
    told, shown = job(
        *(node, "export", crates, "--to", str(tmp_path / "out"), "--json"),
        *(("--format", "csv", "--files", "1") if runner == "leveret spark" else ()),
        runner=runner,
    )
    summary = told.splitlines()[-1] if runner == "spark-submit" else told
    assert json.loads(summary)["messages"] == 5, told
    if runner != "spark-submit":  # it says what it likes
        lines = [line for line in shown.splitlines() if "incubator modules" not in line]  # Java's
        assert all(line.startswith("leveret: ") for line in lines), shown
    if runner == "leveret spark":
        check_csv(tmp_path / "out", crates)


def check_csv(directory, topic):
    (file,) = directory.glob("*.csv")
    with file.open(newline="") as lines:
        rows = sorted(csv.DictReader(lines), key=lambda row: int(row["offset"]))
    assert [row["body"] for row in rows[1:]] == [f'crate "{n}",\nheavy' for n in range(1, 5)]
    assert (rows[0]["body"], rows[0]["body_base64"]) == ("", "/wA=")
    assert [row["message_id"] for row in rows] == [f"m{number}" for number in range(5)]
    assert {row["routing_key"] for row in rows} == {topic}
    assert {"key": "n", "value": "3"} in json.loads(rows[3]["headers"])


def test_errors_are_one_line(node, tmp_path):
    told, shown = job(node, "export", "no-such-topic", "--to", str(tmp_path / "x"), status=1)
    assert told == ""
    assert shown.splitlines()[-1].startswith(
        "leveret spark export: topic 'no-such-topic' does not exist in virtual host '/'"
    )
    assert "Traceback" not in shown


def test_a_missing_java_is_told(node, crates, tmp_path):
    arguments = ("export", crates, "--to", str(tmp_path / "out"))
    _, shown = job(node, *arguments, status=1, runner="python -m", JAVA_HOME=str(tmp_path))
    assert shown.splitlines()[-1].startswith(
        "leveret spark export: Spark has not started; what it says is above. It needs Java 17"
    )
    assert "Traceback" not in shown


@pytest.mark.parametrize("seed", range(2))
def test_an_archive_survives_kills(node, channel, topic, tmp_path, seed):
    """A process that is killed while it writes, and Spark with it: run again, nothing is amiss."""
    random = Random(seed)
    for number in range(400):
        headers = {"x-partition-key": str(number)}
        properties = pika.BasicProperties(delivery_mode=2, headers=headers)
        channel.basic_publish("", topic, b"%d" % number, properties)
    arguments = ["archive", topic, "--to", str(tmp_path / "archive"), "--batch-rows", "60"]
    command = [*RUNNERS["leveret spark"], *arguments, "--servers", node.server]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as running:
        for line in running.stderr:
            if f"batch {2 + seed}" in line:
                time.sleep(random.uniform(0, 2))
                running.kill()
    job(node, *arguments)
    told, _ = job(node, "verify", topic, "--archive", str(tmp_path / "archive"), "--json")
    summary = json.loads(told)
    assert summary["ok"]
    assert summary["topics"][0]["messages"] == 400
    assert summary["topics"][0]["compared_with_log"] == 400
