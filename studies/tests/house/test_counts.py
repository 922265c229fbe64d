"""Source counts: small sources by hand, and the targets that are met."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from rlsched.wire.states import JobState, RankState
from studies.house import counts, extent, in_source
from studies.house.trace_row import row_files

HOLD = {
    "loops that move the clock",
    "bodies that decide an instant",
    "adapter classes",
    "probes",
    "index constants",
    "modules in circles of imports",
    "rooms in circles of imports",
    "files in the largest folder",
    "fields of a state with a literal",
}
"""Counts whose targets are met, and must stay met."""
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
        "tests/test_one.py": "A = 1\n",
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
    monkeypatch.setattr("sys.argv", ["counts", "--now", "--json"])
    assert counts.main() == 0
    found = {one["what"]: one for one in json.loads(capsys.readouterr().out)}
    assert list(found) == [what for what, _, _ in counts.COUNTED]
    assert all(one["now"] == counts.number(one["places"]) for one in found.values())
    over = {what for what, one in found.items() if one["target"] is not None and one["now"] > one["target"]}
    assert not over & HOLD, {what: found[what]["places"] for what in over & HOLD}
    passed = found["files that a trace row passes"]["places"]
    for path in (
        "rlsched/workload/trace.py",
        "envs/rlsched_envs/sim/engine.py",
        "rlsched/decide/recording.py",
    ):
        assert path in passed


def test_every_state_of_a_job_or_a_rank_is_counted() -> None:
    assert {*get_args(JobState), *get_args(RankState)} == extent.STATES


STATES = '''"""A module."""

# a comment
class Job:
    """A job."""

    state = "queued"

    class _Rank:
        text = f"running {state}" + "it is running"

def ended(job):
    match job:
        case Over(outcome="cancelled", by="running"):
            return job.where == "queued"
    return job.state in ("completed",
                         "failed")

job = Job(state="ended", name="running")
'''


@pytest.mark.usefixtures("small")
def test_rooms_names_literals_and_lines_are_counted_as_by_hand(tmp_path: Path) -> None:
    (tmp_path / "rlsched/low/job.py").write_text(STATES)
    (tmp_path / "rlsched/job.py").write_text("class Job: ...\nclass _Rank: ...\n")
    in_source.sources.cache_clear()
    assert [name.removeprefix("rlsched.") for name in extent.rooms("rlsched")] == [
        "four",
        "high",
        "low",
        "three",
        "two",
    ]
    assert extent.arrows("rlsched.high") == []
    assert "rlsched.high -> rlsched.low" in extent.arrows("rlsched")
    assert extent.files_of_one_name() == [
        "job.py: rlsched, rlsched/low",
        "one.py: rlsched/decide, rlsched/high, rlsched/low",
        "two.py: rlsched, rlsched/high, rlsched/low",
    ]
    assert extent.public_classes_of_one_name() == ["Job: rlsched.job, rlsched.low.job"]
    assert extent.private_classes_of_one_name() == ["_Rank: rlsched.job, rlsched.low.job"]
    assert extent.state_literals() == [
        "rlsched/low/job.py:7: queued",
        "rlsched/low/job.py:14: cancelled",
        "rlsched/low/job.py:14: running",
        "rlsched/low/job.py:15: queued",
        "rlsched/low/job.py:16: completed",
        "rlsched/low/job.py:17: failed",
        "rlsched/low/job.py:19: ended",
        "rlsched/low/job.py:19: running",
    ]
    assert extent.states_as_literals() == [
        "rlsched/low/job.py:14: cancelled",
        "rlsched/low/job.py:16: completed",
        "rlsched/low/job.py:17: failed",
        "rlsched/low/job.py:19: ended",
        "rlsched/low/job.py:7: queued",
    ]
    assert extent.files_of_state_literals() == ["rlsched/low/job.py"]
    lines, code = extent.library_lines(), extent.code_lines()
    assert (lines["rlsched/low"], code["rlsched/low"]) == (20, 12), "with the import in rlsched/low/one.py"
    assert extent.lines_of_tests() == {"tests": 1}
    assert extent.lines_of_docs() == {}


def test_another_commit_is_counted_by_the_same_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {
        "rlsched/one.py": "",
        "rlsched/two.py": "import rlsched.one\n",
        "studies/__init__.py": "",
        "studies/house/__init__.py": "",
        "studies/house/trace_row.py": "def row_files():\n    return ['a', 'b']\n",
        "docs/a.md": "a page\n\n",
    }
    for name, text in own.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"]):
        subprocess.run([*git, *arguments], check=True)
    counted = [
        ("rooms", lambda: extent.rooms("rlsched"), 0),
        ("a row", row_files, 1),
        ("docs lines", extent.lines_of_docs, None),
    ]
    monkeypatch.setattr(counts, "TOP", tmp_path)
    monkeypatch.setattr(counts, "COUNTED", counted)
    root = in_source.ROOT
    assert counts.counts_at("HEAD") == {"rooms": 2, "a row": 2, "docs lines": 2}
    assert root == in_source.ROOT

    monkeypatch.setattr("sys.argv", ["counts", "--commit", "--all"])
    with pytest.raises(SystemExit):
        counts.main()
    monkeypatch.setattr("sys.argv", ["counts", "--commit=--all"])
    assert counts.main() == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "Error: a commit of this repository was expected, not '--all': see `git log --oneline`"
    )


def test_the_table_has_a_column_for_another_commit_if_one_was_counted() -> None:
    found = [counts.Count("probes", ["a:1"], 0, 1200), counts.Count("lines", {"a": 1000, "b": 234})]
    assert counts.table(found).splitlines() == [
        "| what   |   was |   now | target            |",
        "|--------|------:|------:|-------------------|",
        "| probes | 1,200 |     1 | 0 at most, missed |",
        "| lines  |     - | 1,234 |                   |",
    ]
    assert counts.table(found[1:]).splitlines()[0] == "| what  |   now | target |"
