"""`rlsched trace nodes`: JSON and a table, one line for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlsched.cli.main import run
from rlsched.power_down.series import NodeDemand


@pytest.fixture
def demand(tmp_path: Path) -> Path:
    """Two days by the minute: two of ten nodes busy, eight from noon to one each day."""
    rows = ["time,busy,total"]
    rows += [f"{60 * minute},{8 if 720 <= minute % 1440 < 780 else 2},10" for minute in range(2880)]
    (tmp_path / "demand.csv").write_text("\n".join(rows) + "\n")
    return tmp_path / "demand.csv"


SMALL = ["--buffer", "1", "--wake-buffer", "1", "--ramp", "0", "--falling-min", "0"]


def test_report_adds_up(demand: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "nodes", str(demand), *SMALL, "--window-h", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["nodes"] == 10
    assert report["days"] == pytest.approx(1.0)
    assert (report["wake_up_events"], report["nodes_booted"]) == (
        1,
        6,
    )  # to nine: two busy nodes and a buffer
    assert (report["slots_short"], report["node_slots_short"]) == (1, 5)
    assert report["node_minutes_short"] == 5 * 450 / 60 + 2.5  # up at the next full minute
    assert report["saved_kwh"] == pytest.approx(report["always_on_kwh"] - report["energy_kwh"])
    assert report["always_on_kwh"] == pytest.approx(10 * 0.708 * 24)
    assert report["forecast"] == "trailing maximum, 1 h"
    assert run(["trace", "nodes", str(demand), *SMALL, "--window-h", "24"]) == 0
    assert "0 (0.00 a day)" in capsys.readouterr().out  # yesterday's noon is remembered


def test_run_is_read_from_its_attempts(tmp_path: Path) -> None:
    path = tmp_path / "fifo.segments.csv"
    path.write_text(
        "job_id,attempt,start_time,end_time,node,gpus\n"
        "a,1,0,300,n1;n2,0-7;0\n"
        "b,1,60,120,n1,1\n"
        "c,1,240,,,\n"
        "d,1,400,520,n3,0\n"
    )
    series = NodeDemand.of_run(path, 5)
    assert series.time_s.tolist() == [60.0 * minute for minute in range(10)]
    assert series.busy.tolist() == [2, 2, 2, 2, 2, 0, 0, 1, 1, 0]
    assert set(series.total.tolist()) == {5.0}


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("time,nodes\n0,1\n", [], "expected the columns time, busy (or active) and total"),
        ("time,busy,total\n0,1,4\n60,1,4\n", [], "give less"),
        ("time,busy,total\n0,1,4\n", ["--nodes", "4"], "--nodes goes with a table of attempts"),
        ("start_time,end_time,gpus\n0,1,4\n", [], "start_time, end_time and node"),
        ("start_time,end_time,node\n0,1,n0;n1\n", ["--nodes", "1"], "2 nodes ran jobs, more than the 1"),
        ("start_time,end_time,node\n5,1,n0\n", [], "line 2: a start at or before the end"),
        ("start_time,end_time,node\n0,x,n0\n", [], "line 2: start_time and end_time must be seconds"),
        ("start_time,end_time,node\n,,\n", [], "found none"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, options: list[str], words: str
) -> None:
    path = tmp_path / "demand.csv"
    path.write_text(text)
    assert run(["trace", "nodes", str(path), *options]) == 2
    caught = capsys.readouterr()
    assert caught.out == ""
    assert words in caught.err
    assert "Traceback" not in caught.err


def test_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "nodes", "nosuch.csv"]) == 2
    assert "nosuch.csv" in capsys.readouterr().err
