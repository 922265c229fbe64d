"""The verbs `queue`, `nodes` and `history` with the options and words of Slurm."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from rlsched.cli.main import run
from rlsched.errors import InputError
from rlsched.wire.messages import JobInfo, Jobs, JobUsage, NodeInfo, PastJob
from tests.support.listed import job


def node(name: str, **more: Any) -> NodeInfo:
    told: dict[str, Any] = {
        "state": "up",
        "gpus": 2,
        "free_gpus": 2,
        "gpu_type": "A100",
        "vc": "",
        "jobs": [],
    }
    told["last_seen_s"] = 0.0
    return NodeInfo(name=name, **(told | more))


def past(number: int, **more: Any) -> PastJob:
    told: dict[str, Any] = {
        "name": "a",
        "user": "ada",
        "account": "",
        "vc": "",
        "state": "completed",
        "num_gpus": 1,
    }
    told |= {
        "submit_s": number - 0.5,
        "start_s": number - 0.5,
        "end_s": float(number),
        "wait_s": 1.0,
        "gpu_s": 1.0,
        "energy_j": None,
    }
    told |= {
        "exit_code": 0,
        "reason": "",
        "nodes": "n0[0]",
        "gpu_types": "A100",
        "attempts": 1,
        "preemptions": 0,
    }
    return PastJob(job=number, **(told | more))


class Lists:
    """A broker with two nodes and some jobs."""

    def __init__(self) -> None:
        self.nodes_known = [node("n0", jobs=[8], free_gpus=1), node("n1", state="drained"), node("n2")]
        self.now = [job(8, account="lab"), job(9, state="queued", user="bob"), job(10, state="queued")]
        self.over = [job(4, state="completed"), job(5, state="failed")]
        self.past = [
            past(1),
            past(3, user="bob", name="b", array=2, task=1),
            past(5),
            past(7, user="eve"),
            past(6, user="bob", state="running", end_s=None),
        ]
        self.since_s: list[float | None] = []

    def __enter__(self) -> Lists:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def nodes(self) -> list[NodeInfo]:
        return self.nodes_known

    def list_jobs(self, *, finished: bool, **_: object) -> Jobs:
        return Jobs(jobs=[*(self.over if finished else []), *self.now])

    def jobs(self) -> list[JobInfo]:
        return self.now

    def me(self) -> str:
        return "ada"

    def job(self, number: int) -> JobInfo:
        for one in self.past:
            if number in (one.job, one.array):
                return job(number, submit_s=one.submit_s)
        raise InputError(f"no job {number}")

    def history(
        self,
        *,
        limit: int | None,
        since_s: float | None,
        user: str | None,
        states: list[str],
        name: str,
        **_: object,
    ) -> list[PastJob]:
        self.since_s.append(since_s)
        found = [
            one
            for one in self.past
            if user in (None, one.user)
            if not states or one.state in states
            if name in ("", one.name)
            if since_s is None or one.end_s is None or one.end_s >= since_s
        ]
        return found if limit is None else found[-limit:]

    def usage(self, *, user: str | None, **_: object) -> Iterator[JobUsage]:
        for one in self.past:
            if user in (None, one.user) and one.end_s is not None:
                yield JobUsage(one.user, "", "", time.time(), one.state, 3600.0, None, 1.0)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Lists:
    lists = Lists()
    monkeypatch.setattr("rlsched.cli.shared.options.BrokerAt.reach", lambda *_, **__: lists)
    return lists


def said(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The output of a verb."""
    assert run(words.split()) == 0
    return capsys.readouterr().out


def test_nodes_that_are_left_out_are_counted(broker: Lists, capsys: pytest.CaptureFixture[str]) -> None:
    assert said("nodes -p debug", capsys) == "no such node; `rlsched nodes` lists 3 nodes\n"
    broker.nodes_known = []
    assert "no node has registered yet" in said("nodes -p debug", capsys)


@pytest.mark.usefixtures("broker")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", "8 9 10"),
        ("-t completed", "4"),
        ("-t CD,R", "4 8"),
        ("--me -t all", "4 5 8 10"),
        ("-t pd", "9 10"),
        ("--all", "4 5 8 9 10"),
    ],
)
def test_queue_with_finished_states(words: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(f"queue -o job {words}", capsys).split()[1:] == expected.split()


@pytest.mark.usefixtures("broker")
def test_history_of_several_users(capsys: pytest.CaptureFixture[str]) -> None:
    def numbers(words: str) -> list[str]:
        return said(f"history -o job {words}", capsys).split()[1:]

    assert numbers("-u ada,bob,ada") == ["1", "3", "5", "6"]
    assert numbers("-u ada,bob --limit 3") == ["3", "5", "6"]
    assert numbers("-u bob") == ["3", "6"]
    assert numbers("-s RUNNING,CD") == numbers("")
    assert [line[:5] for line in said("account -u ada,bob --csv", capsys).splitlines()[1:]] == [
        "ada,2",
        "bob,1",
    ]


@pytest.mark.usefixtures("broker")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("queue -h -o job", ["8", "9", "10"]),
        ("queue --noheader -o job -u eve", []),
        ("queue -h -u eve", []),
        ("nodes -h -o name", ["n0", "n1", "n2"]),
        ("nodes -h -p debug", []),
        ("history -n -o job -s CD,F --name b", ["3"]),
        ("history --noheader -u zoe", []),
        ("history -n -o job -j 2_1,5", ["3", "5"]),
        ("history -n -o job -X -j 2 --limit 1", ["3"]),
        ("queue -h -o job -w n0", ["8"]),
        ("queue -h -o job -w n1,n2", []),
        ("queue -h -o job -A lab,x", ["8"]),
        ("nodes -h -o name -N -t idle", ["n2"]),
        ("nodes -h -o name -t mix,drain", ["n0", "n1"]),
        ("nodes -h -o name -t all", ["n0", "n1", "n2"]),
        ("nodes -h -o name -R", ["n1"]),
    ],
)
def test_list_without_heading(words: str, expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert said(words, capsys).split() == expected


def test_history_of_single_jobs_lists_none_that_ended_before_them(
    broker: Lists, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said("history -n -o job -j 7,5,99", capsys).split() == ["5", "7"]
    assert broker.since_s == [4.5]
    assert said("history -n -o job -j 99", capsys) == ""
    assert broker.since_s == [4.5], "no list was requested"


@pytest.mark.usefixtures("broker")
def test_table_without_heading(capsys: pytest.CaptureFixture[str]) -> None:
    for verb, short in (("queue", "-h"), ("nodes", "-h"), ("history", "-n")):
        heading, *rows = said(verb, capsys).splitlines()
        assert heading.split()[1] in ("name", "state")
        assert said(f"{verb} {short}", capsys).splitlines() == rows
        assert "Usage: " in said(f"{verb} --help", capsys)
