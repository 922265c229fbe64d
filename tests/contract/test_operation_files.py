"""The files for operators name existing verbs, options and metrics."""

from __future__ import annotations

import json
import re
import shlex
from configparser import ConfigParser
from pathlib import Path

import click
import msgspec
import pytest

from rlsched.cli.main import cli
from rlsched.cli.operators.metrics import figures
from rlsched.wire.messages import (
    GpusReport,
    GuardReport,
    JournalReport,
    PowerLimitReport,
    PriceReport,
    RecordsReport,
    StatsReport,
    Timing,
)

FOLDER = Path(__file__).parents[2] / "examples" / "operation"
TIMING = Timing(bounds_s=[0.1], counts=[1, 0], sum_s=0.05)
OUTSIDE = {"column": "queue_log", "share_frac": 0.5, "value": 2.0, "low": 0.0, "high": 1.0}
DRIFT = {"active": True, "looks": 200, "outside": [OUTSIDE]}
REPORT = StatsReport(
    policy="tuned",
    decisions={"rule": 1},
    contested={},
    queued=1,
    running=1,
    ended=1,
    uptime_s=1.0,
    nodes={"up": 1},
    journal=JournalReport(path="j", size_bytes=1, last_commit_ms=1.0, free_bytes=1, low_bytes=1),
    guard=msgspec.convert({"decided": {"late": 1}, "masked": {}, "now": "", "drift": DRIFT}, GuardReport),
    records=RecordsReport(kept=1, lost={"written": 1}, troubles={}),
    gpus={"h200": GpusReport(total=1, free=0, held=1, absent=0)},
    outcomes={"completed": 1},
    timings={"decision": TIMING, "commit": TIMING, "turn": TIMING},
    connections={"handshakes": 1},
    price=PriceReport(price=80.0, ratio=1.5, until_s=2.0, deferred=1, deferred_gpus=8, waiting_since_s=1.0),
    power_limit=PowerLimitReport(
        limit_w=9e3,
        until_s=2.0,
        most_w=8e3,
        urgent_clock_frac=1.0,
        flexible_clock_frac=0.8,
        waiting=1,
        falls=((2.0, 5e3),),
    ),
)


def known() -> set[str]:
    return {"rlsched_up", *(sample.name for family in figures(REPORT) for sample in family.samples)}


@pytest.mark.parametrize("name", ["grafana.json", "alerts.yml"])
def test_every_drawn_or_watched_metric_is_served(name: str) -> None:
    asked = set(re.findall(r"rlsched_[a-z_]+", (FOLDER / name).read_text()))
    assert asked
    assert asked <= known()


def test_every_served_metric_has_a_panel_except_the_listed_ones() -> None:
    drawn = set(re.findall(r"rlsched_[a-z_]+", (FOLDER / "grafana.json").read_text()))
    quiet = {"rlsched_up", "rlsched_info", "rlsched_uptime_seconds", "rlsched_epoch", "rlsched_queued_gpus"}
    quiet |= {"rlsched_records_lost_total"}
    assert {name for name in known() if not name.endswith(("_count", "_sum"))} - quiet == drawn


def test_panels_do_not_overlap() -> None:
    panels = json.loads((FOLDER / "grafana.json").read_text())["panels"]
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
    assert len({panel["id"] for panel in panels}) == len(panels)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.service")), ids=lambda path: path.name)
def test_units_start_verbs_with_existing_options(path: Path) -> None:
    unit = ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(path)
    program, verb, *words = shlex.split(unit["Service"]["ExecStart"])
    assert program.endswith("/rlsched")
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options
    assert unit["Service"]["UMask"] == "0077"
