"""TensorBoard starts on the files of the writer and serves them."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlsched.board.convert import draw_run
from rlsched.board.curves import description_of
from rlsched.board.reader import read_runs
from rlsched.board.tags import DESCRIPTIONS
from rlsched.broker.queries.report import forecast_curves
from rlsched.decide.actions import Start
from rlsched.decide.record import DecisionRecord, Names
from rlsched.decisions.schema import StoreInfo
from rlsched.decisions.store import DecisionStore
from rlsched.wire.messages import ForecastReport, ForecastScore
from tests.support.online.cluster import Cluster, all_up, until

DEADLINE_S = 90.0
LAUNCH = "from rlsched.cli.traces.board import board; board()"


def a_record(number: int) -> DecisionRecord:
    return DecisionRecord(
        source="rule",
        policy_id="p",
        state_digest="d",
        number=number,
        now_s=float(number),
        partition="shared",
        action=Start(seq=number, gpus=(0,)),
        took_us=10.0,
        names=Names(jobs={number: str(number)}),
    )


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A TensorBoard on a free port, started as `rlsched board` does."""
    store = DecisionStore(tmp_path / "log" / "fifo", StoreInfo(time="trace", of="fifo on a trace"))
    store.add_decisions([a_record(number) for number in range(5)])
    store.flush()
    draw_run(tmp_path / "log" / "fifo", tmp_path / "log" / "fifo")
    for name, damage in (("newer", "version"), ("torn", "cut"), ("garbled", "description")):
        folder = tmp_path / "log" / name
        shutil.copytree(tmp_path / "log" / "fifo", folder)
        (info,), (segment,) = folder.glob("store.json"), folder.glob("decisions-*.arrow")
        if damage == "version":
            info.write_text(info.read_text().replace('"version": 1', '"version": 99'))
        elif damage == "cut":
            segment.write_bytes(segment.read_bytes() + segment.read_bytes()[:-40][-400:])
        else:
            info.write_bytes(b"\x00\xff")
    out = tmp_path / "stdout"
    with out.open("w") as stdout, (tmp_path / "stderr").open("w") as stderr:
        server = subprocess.Popen(
            [
                sys.executable,
                "-u",
                "-c",
                LAUNCH,
                str(tmp_path / "log"),
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
        server.wait(timeout=60)


def server_waits(server: subprocess.Popen[bytes]) -> None:
    """Wait a moment for the server; returns at once if it exits."""
    try:
        server.wait(timeout=0.1)
    except subprocess.TimeoutExpired:
        return


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as reply:
        return json.loads(reply.read())


def refused(url: str) -> tuple[int, str]:
    """Code and error of a refused request."""
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(url, timeout=60)
    return error.value.code, json.loads(error.value.read())["error"]


def test_tensorboard_serves_curves_and_decisions(address: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    tags: dict[str, Any] = {}
    while "fifo" not in tags:
        assert time.monotonic() < deadline, f"no run within the deadline: {tags}"
        tags = get(address + "data/plugin/scalars/tags")
    assert "decisions/source_rule_count" in tags["fifo"]
    points = get(address + "data/plugin/scalars/scalars?run=fifo&tag=decisions%2Fsource_rule_count")
    assert [point[1:] for point in points] == [[5, 5.0]]

    plugin = address + "data/plugin/decisions/"
    runs = {one["run"]: one for one in get(plugin + "runs")}
    run = runs["fifo"]
    assert "a store of version 99, this rlsched reads version 1" in runs["newer"]["error"]
    assert "expected the description of a store of decisions, as JSON" in runs["garbled"]["error"]
    assert (runs["torn"]["decisions"], len(runs["torn"]["cut_short"])) == (5, 1)
    assert "version 99" in refused(plugin + "overview?run=newer")[1]
    assert (run["run"], run["of"], run["decisions"]) == ("fifo", "fifo on a trace", 5)
    one = get(plugin + "decision?run=fifo&row=4")
    assert (one["number"], one["did"], one["by"]) == (4, "start job 4 on 1 GPU", "the rule p")
    assert get(plugin + "overview?run=fifo")["marks"]["row"] == [0, 1, 2, 3, 4]
    with urllib.request.urlopen(plugin + "static/index.js", timeout=60) as reply:
        assert "export async function render" in reply.read().decode()
    for path, code, said in (
        ("decision?run=..%2F..%2Fetc&row=0", 400, "run: no store of decisions '../../etc' below"),
        ("decision?run=fifo&row=5", 400, "row: expected less than 5, got 5"),
        ("decision?run=fifo&row=" + "9" * 5000, 400, "row: expected a whole number"),
        ("moment?run=fifo&at=nan", 400, "at: expected a number up to 1e+11, got 'nan'"),
        ("job?run=fifo&job=" + "x" * 5000, 400, "job: expected 1 to 200 characters, got 5,000"),
        ("job?run=fifo&job=missing", 400, "no job 'missing' in this store; the store has no jobs yet"),
        ("static/..%2Fplugin.py", 404, "no such file"),
    ):
        found = refused(plugin + path)
        assert found[0] == code
        assert said in found[1]


@pytest.mark.slow
def test_broker_draws_its_queue_and_its_gpus(tmp_path: Path) -> None:
    logdir = tmp_path / "tb"
    options = ("--policy", "fifo-backfill", "--prediction", "running-mean", "--logdir", str(logdir))
    cluster = Cluster(tmp_path, nodes=["n0"], broker_options=options)
    try:
        with cluster.client() as client:
            all_up(client, 1)
            first = client.submit(["sleep", "600"], num_gpus=3)
            until(lambda: client.job(first).state == "running", "it runs")
            for gpus in (2, 4, 3):
                client.submit(["sleep", "600"], num_gpus=gpus)

            def last(tag: str) -> float:
                points = read_runs(logdir)["."].scalars.get(tag) if logdir.is_dir() else None
                return points[-1][1] if points else math.nan

            until(lambda: last("cluster/waiting_2_to_8_gpus_jobs") == 3.0, "the queue is drawn")
            assert last("cluster/busy_frac") == 0.75
            assert math.isnan(last("cluster/waiting_over_8_gpus_jobs")), "always 0: not drawn"
    finally:
        cluster.close()


def test_accuracy_of_forecasts_becomes_described_curves() -> None:
    rules = {"last": 9.0, "week": None, "list": 5.0}
    score = ForecastScore(what="end-running", size="all", jobs=50, covered_frac=0.8, loss_s=3.0, rules=rules)
    of_one = msgspec.structs.replace(score, size="1", loss_s=7.0)
    curves = forecast_curves(ForecastReport(note="", scores=[score, of_one]))
    assert curves == {
        "forecast/end_running_inside_frac": 0.8,
        "forecast/end_running_loss_s": 3.0,
        "forecast/end_running_loss_s_last": 9.0,
        "forecast/end_running_loss_s_list": 5.0,
    }
    said = [description_of(tag, DESCRIPTIONS) for tag in curves]
    assert all(said)
    assert len(set(said)) == 3, "the rules have one of their own"
    assert forecast_curves(None) == {}
