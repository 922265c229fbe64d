"""Source counts: small sources by hand, and the targets that are met."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from studies.house import counts, in_source

HOLD = {
    "loops that move the clock",
    "bodies that decide an instant",
    "adapter classes",
    "probes",
    "index constants",
    "modules in circles of imports",
    "rooms in circles of imports",
    "files in the largest folder",
}
"""Counts with targets that are met and stay met."""
SIMULATOR = """
from rlsched_envs.sim.moves import start
COLUMN, OTHER = range(2)
UNUSED = 3

def pass_time(run, at_s):
    run.seconds = at_s - run.now_s
    run.now_s = at_s

def next_instant(run):
    pass_time(run, 1.0)

def replay(run):
    while next_instant(run):
        pass

def outside(run):
    replay(run)
    return hasattr(run.scheduler, "preempts")

@kernel
def decide(s, a):
    for p in a[COLUMN]:
        start(s, p)

@kernel
def ask(s):
    return next_move(s)

@kernel
def follow(s, move):
    while move:
        move = next_move(s)

class Adapter:
    def decide(self):
        self.rule = a[0, OTHER]
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A small product with a test and a page."""
    texts = {
        "rlsched/decide/one.py": SIMULATOR,
        "rlsched/two.py": "import rlsched.three\n",
        "rlsched/three.py": "def late():\n    from rlsched import two\n",
        "rlsched/four.py": "from rlsched import two\n",
        "rlsched/low/one.py": "from rlsched.high import two\n",
        "rlsched/high/one.py": "from rlsched.low.two import NAME\n",
        "rlsched/high/two.py": "",
        "rlsched/low/two.py": "",
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(in_source, "ROOT", tmp_path)
    monkeypatch.setattr(in_source, "PACKAGES", ("rlsched",))
    in_source.sources.cache_clear()
    yield
    in_source.sources.cache_clear()


@pytest.mark.usefixtures("small")
def test_small_source_is_counted_as_by_hand() -> None:
    one = "rlsched.decide.one"
    assert in_source.clock_loops() == [f"{one}.replay"]
    assert in_source.deciding_bodies() == [f"{one}.decide", f"{one}.follow"]
    assert in_source.adapters() == [f"{one}.Adapter"]
    assert in_source.probes() == [f"{one}:19"]
    assert in_source.index_constants() == [f"{one}.COLUMN", f"{one}.OTHER"]
    assert in_source.circles() == ["rlsched.three", "rlsched.two"]
    assert in_source.rooms_in_circles() == ["rlsched.high", "rlsched.low", "rlsched.three", "rlsched.two"]
    assert in_source.largest_folder() == ["rlsched/four.py", "rlsched/three.py", "rlsched/two.py"]


def test_table_has_every_count_and_met_targets_hold(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["counts", "--json"])
    assert counts.main() == 0
    found = {one["what"]: one for one in json.loads(capsys.readouterr().out)}
    assert list(found) == [what for what, _, _ in counts.COUNTED]
    assert all(one["now"] == len(one["places"]) for one in found.values())
    over = {what for what, one in found.items() if one["now"] > one["target"]}
    assert not over & HOLD, {what: found[what]["places"] for what in over & HOLD}
    passed = found["files that a trace row passes"]["places"]
    for path in (
        "rlsched/workload/trace.py",
        "envs/rlsched_envs/sim/engine.py",
        "rlsched/decide/recording.py",
    ):
        assert path in passed
    monkeypatch.setattr("sys.argv", ["counts"])
    assert counts.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| what | now | target |"
    assert len(lines) == 2 + len(found)
