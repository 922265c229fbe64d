"""TensorBoard really starts on what the writer wrote, and serves it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlsched.decide.actions import Start
from rlsched.decide.record import DecisionRecord, Names, append_records

DEADLINE_S = 90.0
LAUNCH = "from rlsched.cli.board import board; board()"


def a_record(number: int) -> DecisionRecord:
    return DecisionRecord(
        source="rule",
        policy_id="p",
        schema_hash="s",
        state_digest="d",
        number=number,
        now_s=float(number),
        partition="shared",
        halves=[],
        temperature=0.0,
        value=None,
        action=Start(seq=number, gpus=(0,)),
        took_us=10.0,
        names=Names(jobs={number: str(number)}),
    )


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A TensorBoard on a free port, started as `rlsched board` does."""
    append_records(tmp_path / "fifo.msgpack", [a_record(number) for number in range(5)])
    out = tmp_path / "stdout"
    with out.open("w") as stdout, (tmp_path / "stderr").open("w") as stderr:
        server = subprocess.Popen(
            [
                sys.executable,
                "-u",
                "-c",
                LAUNCH,
                "--logdir",
                str(tmp_path / "log"),
                "--records",
                str(tmp_path / "fifo.msgpack"),
                "--port",
                "0",
                "--host",
                "127.0.0.1",
            ],
            stdout=stdout,
            stderr=stderr,
        )
    try:
        deadline = time.monotonic() + DEADLINE_S
        while " at http" not in out.read_text():
            assert server.poll() is None, (tmp_path / "stderr").read_text()
            assert time.monotonic() < deadline, "TensorBoard did not start in time"
            server_waits(server)
        yield out.read_text().split(" at ")[1].split(" ")[0]
    finally:
        server.terminate()
        server.wait(timeout=30)


def server_waits(server: subprocess.Popen[bytes]) -> None:
    """Give the server a moment: returns at once should it end."""
    try:
        server.wait(timeout=0.1)
    except subprocess.TimeoutExpired:
        return


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as reply:
        return json.loads(reply.read())


def test_tensorboard_serves_curves_and_table(address: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    tags: dict[str, Any] = {}
    while "fifo" not in tags:
        assert time.monotonic() < deadline, f"no run within the deadline: {tags}"
        tags = get(address + "data/plugin/scalars/tags")
    assert "decisions/source_rule_count" in tags["fifo"]
    points = get(address + "data/plugin/scalars/scalars?run=fifo&tag=decisions%2Fsource_rule_count")
    assert [point[1:] for point in points] == [[5, 5.0]]
    assert get(address + "data/plugin/text/tags")["fifo"] == ["decisions/last"]
    texts = get(address + "data/plugin/text/text?run=fifo&tag=decisions%2Flast")
    assert "<table>" in texts[-1]["text"]
    assert "start job 4 on 1 GPU" in texts[-1]["text"]
