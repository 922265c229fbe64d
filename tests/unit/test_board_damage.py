"""A broker's own event file: read back as it was written, and damaged in every way that disks know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rlsched.board.reader import read_runs
from rlsched.board.tags import DESCRIPTIONS
from rlsched.broker.records import RecordLog
from rlsched.cli.board import board
from tests.unit.test_board_curves import event_values
from tests.unit.test_broker_records import record

DECISIONS = 600
COUNT = "decisions/source_rule_count"


@pytest.fixture
def event_file(tmp_path: Path) -> Path:
    """What a broker draws while it decides."""
    log = RecordLog(tmp_path / "decisions", tmp_path / "tb")
    log.add([record(number) for number in range(DECISIONS)])
    log.flush()
    log.close()
    (found,) = (tmp_path / "tb").glob("events*")
    return found


def summary(folder: Path, *more: str) -> Result:
    return CliRunner().invoke(board, ["--summary", str(folder), *more])


def test_what_a_broker_draws_can_be_read(event_file: Path) -> None:
    run = read_runs(event_file.parent)["."]
    assert run.damaged == []
    points = run.scalars[COUNT]
    assert points[-1][0] == DECISIONS
    assert sum(value for _, value in points) == DECISIONS
    assert event_values(event_file.parent)[COUNT].description == DESCRIPTIONS[COUNT]
    done = summary(event_file.parent)
    assert (done.exit_code, done.stderr) == (0, "")
    assert COUNT in done.stdout


@pytest.mark.parametrize("how", ["cut", "flipped", "garbage", "zeros"])
def test_a_damaged_one_gives_one_line_and_what_came_before(event_file: Path, how: str) -> None:
    whole = event_file.read_bytes()
    points = len(read_runs(event_file.parent)["."].scalars[COUNT])
    at = len(whole) // 2
    event_file.write_bytes(
        {
            "cut": whole[:at],
            "flipped": whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :],
            "garbage": b"nonsense" * 50,
            "zeros": whole[:at] + bytes(len(whole) - at),
        }[how]
    )
    done = summary(event_file.parent, "--json")
    assert done.exit_code == 0, done.output
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{event_file}: damaged after ")
    kept = json.loads(done.stdout)["."]
    if how == "garbage":
        assert kept == {}
        assert "after 0 records" in line
    else:
        assert 0 < kept[COUNT]["points"] < points
