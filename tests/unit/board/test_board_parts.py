"""A large store in the tab: its parts, how many of them stay in memory, and its answers."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tensorboard.plugins import base_plugin
from werkzeug.test import Client

from rlsched.board import plugin
from rlsched.decisions import reading, segments
from rlsched.decisions import store as store_module
from rlsched.decisions.schema import JobEvent, NodeChange, StoreInfo
from rlsched.decisions.store import DecisionStore
from tests.support.decided import record


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of several parts."""
    monkeypatch.setattr(reading, "PART_BYTES", 40_000)
    monkeypatch.setattr(store_module, "SEGMENT_BYTES", 10_000)
    kept = DecisionStore(tmp_path / "run", StoreInfo(time="trace", of="a test"))
    kept.add_events([NodeChange(time_s=0.0, node="n0", num_gpus=8)])
    for number in range(2_000):
        about: dict[str, Any] = {"job": f"j{number}", "num_gpus": 1.0}
        kept.add_decisions([msgspec.structs.replace(record(number), now_s=float(number))])
        kept.add_events([JobEvent(time_s=float(number), kind="submit", **about)])
        if number % 40 == 39:
            kept.flush()
    kept.flush()
    return tmp_path


def test_parts_cover_the_store_one_after_the_other(folder: Path) -> None:
    stores = plugin.Stores(str(folder))
    last, *earlier = stores.names()
    readers = [stores.reader(name) for name in (*earlier[::-1], last)]
    assert len(readers) > 3
    assert [number for reader in readers for number in reader.numbers.tolist()] == list(range(2_000))
    for reader, later in pairwise(readers):
        assert reader.timeline.last_s == reader.period[1] == later.period[0] == later.timeline.first_s
    assert readers[-1].timeline.last_s == 1_999.0
    assert readers[-1].period[1] == math.inf
    jobs = [set(reader.timeline.names) for reader in readers]
    for reader, known in zip(readers, jobs, strict=True):
        assert known >= {f"j{number}" for number in reader.numbers.tolist()}


def test_only_the_last_earlier_parts_stay_in_memory(folder: Path) -> None:
    stores = plugin.Stores(str(folder))
    last, *earlier = stores.names()
    for name in (last, *earlier):
        stores.reader(name)
    kept = earlier[-plugin.MOST_EARLIER :]
    assert [name for name, is_open in stores.names().items() if is_open] == [last, *kept]
    assert stores.reader(kept[0]) is stores.reader(kept[0])


def test_parts_are_listed_from_the_beginnings_of_the_files(folder: Path) -> None:
    """Whole files are not read, and beginnings are read again only if a file has changed."""
    found = reading.parts(folder / "run")
    segments._beginning.cache_clear()
    for path in (folder / "run").glob("*.arrow"):
        content = path.read_bytes()
        first = content[: len(content) * 3 // 4]
        path.write_bytes(first + bytes(len(content) - len(first)))
    assert reading.parts(folder / "run") == found
    read = segments._beginning.cache_info().misses
    assert reading.parts(folder / "run") == found
    assert segments._beginning.cache_info().misses == read


def test_answers_have_null_for_unknown_numbers(folder: Path) -> None:
    apps = plugin.DecisionsPlugin(base_plugin.TBContext(logdir=str(folder))).get_plugin_apps()
    answer = Client(apps["/job"]).get("/job", query_string={"run": "run", "job": "j1999"})
    assert answer.status_code == 200
    found = json.loads(answer.data, parse_constant=pytest.fail)
    assert (found["job"], found["predicted_s"], found["end_s"]) == ("j1999", None, None)
    overview = Client(apps["/overview"]).get("/overview", query_string={"run": "run"})
    assert json.loads(overview.data, parse_constant=pytest.fail)["bars"]["job"] == []


@pytest.mark.parametrize("path", ["/moment?at=", "/overview?from=0&to=", "/overview?to=9&from="])
@pytest.mark.parametrize("huge", ["1e300", "-1e18", "nan", "inf"])
def test_huge_times_are_refused_in_a_store_of_wall_clock_times(tmp_path: Path, path: str, huge: str) -> None:
    kept = DecisionStore(tmp_path / "run", StoreInfo(time="unix", of="a test"))
    kept.add_decisions([record(0)])
    kept.flush()
    apps = plugin.DecisionsPlugin(base_plugin.TBContext(logdir=str(tmp_path))).get_plugin_apps()
    client = Client(apps[path.partition("?")[0]])
    answer = client.get(f"{path}{huge}&run=run")
    assert answer.status_code == 400
    assert "expected a number up to 1e+11" in json.loads(answer.data)["error"]
    for furthest in ("1e11", "-1e11"):
        assert client.get(f"{path}{furthest}&run=run").status_code == 200
