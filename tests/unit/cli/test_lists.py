"""The verbs `queue`, `nodes` and `history` with the options and words of Slurm."""

from __future__ import annotations

from typing import Any

import pytest

from rlsched.cli.main import run
from rlsched.wire.messages import NodeInfo


def node(name: str, **more: Any) -> NodeInfo:
    told = {
        "state": "up",
        "gpus": 2,
        "free_gpus": 2,
        "gpu_type": "A100",
        "vc": "",
        "jobs": [],
        "last_seen_s": 0.0,
    }
    return NodeInfo(name=name, **(told | more))


class Lists:
    """A broker with two nodes and some jobs."""

    def __init__(self) -> None:
        self.nodes_known = [node("n0"), node("n1", state="drained")]

    def __enter__(self) -> Lists:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def nodes(self) -> list[NodeInfo]:
        return self.nodes_known


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
    assert said("nodes -p debug", capsys) == "no such node; `rlsched nodes` lists 2 nodes\n"
    broker.nodes_known = []
    assert "no node has registered yet" in said("nodes -p debug", capsys)
