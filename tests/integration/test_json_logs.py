"""`--log-format json`: every line of broker, node, metrics and notify is one JSON object."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

from rlsched.client.client import Client
from tests.support.online.cluster import RLSCHED, Cluster, all_up


def lines(*paths: Path) -> list[dict[str, object]]:
    """Every line of these files; each must be an object with the four fields."""
    found = []
    for path in paths:
        for line in path.read_text().splitlines():
            one = json.loads(line)
            assert {"time", "level", "logger", "message"} <= one.keys(), line
            found.append(one)
    return found


def test_every_line_of_broker_and_node_is_an_object(tmp_path: Path) -> None:
    words = ("--log-format", "json")
    cluster = Cluster(tmp_path, nodes=("n0",), broker_options=words, node_options=words)
    try:
        with Client(cluster.address, home=cluster.keys) as client:
            all_up(client, 1)
            job = client.submit(["sh", "-c", 'echo \'{"level": "critical"}\'; exit 3'], name='x"}{')
            assert client.wait(job).exit_code == 3
    finally:
        cluster.close()
    broker = lines(tmp_path / "broker.log")
    assert any(str(one["message"]).startswith("rlsched broker ready at ") for one in broker)
    node = lines(tmp_path / "n0.log")
    assert node
    assert {one["node"] for one in node} == {"n0"}
    assert "critical" not in {one["level"] for one in broker + node}


def test_fatal_error_is_an_object_too(tmp_path: Path) -> None:
    env = os.environ | {"RLSCHED_LOG_FORMAT": "json", "RLSCHED_HOME": str(tmp_path)}
    for words, code in (
        (("metrics", "--listen", "nowhere"), 2),
        (("broker", "--policy", "easy", "--lost-after", "1s"), 2),
    ):
        done = subprocess.run(
            [*RLSCHED, *words], env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert (done.returncode, done.stdout) == (code, "")
        (line,) = done.stderr.splitlines()
        assert json.loads(line)["level"] == "critical"


def test_metrics_reports_that_it_is_ready(tmp_path: Path) -> None:
    env = os.environ | {"RLSCHED_HOME": str(tmp_path)}
    words = [*RLSCHED, "metrics", "--listen", "127.0.0.1:0", "--log-format", "json"]
    process = subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = json.loads(process.stderr.readline())
        assert line["message"].startswith("rlsched metrics ready at http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, 130)
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
