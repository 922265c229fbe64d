"""Replays next to the board: one at a time, with a time limit, and started only by requests of the page."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.plugins import base_plugin
from werkzeug.test import Client

from rlsched.board import plugin
from rlsched.board.replays import LIMIT_S, ReplayRunner
from rlsched.decide.actions import Start
from rlsched.decide.record import DecisionRecord, Names, PlanSeen
from rlsched.decisions.schema import StoreInfo
from rlsched.decisions.store import DecisionStore
from rlsched.errors import InputError

SAYS_ITS_ARGUMENTS = (sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))")
NEVER_ENDS = (sys.executable, "-c", "import time; time.sleep(600)")
FAILS = (sys.executable, "-c", "import sys; print('Error: no such luck', file=sys.stderr); sys.exit(2)")
PATIENCE_S = 120.0


def settled(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Final state of a replay."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        seen = look()
        if seen["state"] != "running":
            return seen
        time.sleep(0.01)
    raise AssertionError("the replay did not end")


def test_replay_starts_with_its_options_and_reports_its_result(tmp_path: Path) -> None:
    replays = ReplayRunner(SAYS_ITS_ARGUMENTS, limit_s=7.0)
    began = replays.start(tmp_path, 12, 3, 24.0)
    seen = settled(lambda: replays.replay_state(began["ticket"]))
    assert seen["state"] == "done"
    assert seen["found"] == [
        *("--run", str(tmp_path), "--decision", "12", "--hours", "24", "--instead", "3", "--within", "7")
    ]
    again = replays.start(tmp_path, 12, 0, 0.5)
    assert settled(lambda: replays.replay_state(again["ticket"]))["found"][7] == "rule"
    with pytest.raises(InputError, match="a later replay has replaced it"):
        replays.replay_state(began["ticket"])


def test_one_replay_at_a_time_and_none_after_the_page_is_closed(tmp_path: Path) -> None:
    replays = ReplayRunner(NEVER_ENDS)
    began = replays.start(tmp_path, 1, 1, 1.0)
    with pytest.raises(InputError, match="another replay runs"):
        replays.start(tmp_path, 1, 1, 1.0)
    assert replays.stop(began["ticket"])["error"] == "it was stopped"
    assert replays.replay_state(began["ticket"])["state"] == "failed"
    assert replays.start(tmp_path, 1, 1, 1.0)["state"] == "running"
    replays.stop(began["ticket"] + 1)


def test_replay_of_a_closed_page_ends(tmp_path: Path) -> None:
    replays = ReplayRunner(NEVER_ENDS, unwatched_s=0.05)
    ticket = replays.start(tmp_path, 1, 1, 1.0)["ticket"]
    assert replays._of(ticket)._over.wait(PATIENCE_S)
    assert replays.replay_state(ticket)["error"] == "its page was closed"


def test_replay_that_takes_too_long_is_ended_and_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlsched.board.replays.GRACE_S", 0.05)
    replays = ReplayRunner(NEVER_ENDS, limit_s=0.01)
    ticket = replays.start(tmp_path, 1, 1, 1.0)["ticket"]
    assert settled(lambda: replays.replay_state(ticket))["error"].startswith("could not finish within 0.01 s")


def test_error_of_a_replay_is_its_last_line(tmp_path: Path) -> None:
    replays = ReplayRunner(FAILS)
    ticket = replays.start(tmp_path, 1, 1, 1.0)["ticket"]
    assert settled(lambda: replays.replay_state(ticket)) == {
        "ticket": ticket,
        "limit_s": LIMIT_S,
        "state": "failed",
        "error": "Error: no such luck",
    }


@pytest.fixture
def pages(tmp_path: Path) -> Client:
    """The plugin on a store of one decision with two plans."""
    record = DecisionRecord(
        source="rule",
        policy_id="p",
        state_digest="d",
        number=5,
        now_s=1.0,
        partition="shared",
        action=Start(seq=1, gpus=(0,)),
        took_us=10.0,
        turn=1,
        plans=[PlanSeen(how="free", chosen=True), PlanSeen(how="share", verdict="no"), PlanSeen(how="later")],
        names=Names(jobs={1: "one"}),
    )
    store = DecisionStore(tmp_path / "run", StoreInfo(time="trace", of="fifo on a trace"))
    store.add_decisions([record])
    store.flush()
    made = plugin.DecisionsPlugin(base_plugin.TBContext(logdir=str(tmp_path)))
    made._replays = ReplayRunner(SAYS_ITS_ARGUMENTS)
    return Client(made.get_plugin_apps()["/instead"])


ASKED = {"run": "run", "row": "0", "candidate": "2", "hours": "24"}
OURS = {plugin.ASKS: "1"}


def test_request_of_the_page_starts_a_replay(pages: Client, tmp_path: Path) -> None:
    answer = pages.post("/instead", query_string=ASKED, headers=OURS)
    assert answer.status_code == 200
    ticket = json.loads(answer.data)["ticket"]
    seen = settled(lambda: json.loads(pages.get("/instead", query_string={"ticket": ticket}).data))
    assert seen["found"][:4] == ["--run", str(tmp_path / "run"), "--decision", "5"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"run": "../run"}, "no store of decisions"),
        ({"row": "1"}, "row: expected less than 1"),
        ({"row": "-1"}, "row: expected a whole number"),
        ({"candidate": "3"}, "decision 5 has no candidate 3"),
        ({"candidate": "0"}, "decision 5 has no candidate 0"),
        ({"candidate": "2; reboot"}, "candidate: expected a whole number"),
        ({"hours": "inf"}, "hours: expected a number"),
        ({"hours": "0"}, "hours: expected more than 0"),
        ({"hours": "1e9"}, "hours: expected more than 0"),
        ({"hours": "--policy x"}, "hours: expected a number"),
    ],
)
def test_only_numbers_of_this_store_are_accepted(pages: Client, changed: dict[str, str], said: str) -> None:
    answer = pages.post("/instead", query_string=ASKED | changed, headers=OURS)
    assert answer.status_code == 400
    assert said in json.loads(answer.data)["error"]


def test_other_sites_cannot_start_or_end_replays(pages: Client) -> None:
    assert pages.get("/instead", query_string=ASKED).status_code == 400
    assert pages.post("/instead", query_string=ASKED).status_code == 405
    assert pages.post("/instead", query_string={"stop": "1"}).status_code == 405
    assert pages.post("/instead", query_string={"stop": "1"}, headers=OURS).status_code == 400


def test_board_process_imports_no_simulator() -> None:
    code = "import sys, rlsched.board.plugin; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(said.stdout.split())
    assert "rlsched.board.replays" in loaded
    assert loaded.isdisjoint({"torch", "zmq", "numba", "rlsched_envs", "rlsched_agents"})
