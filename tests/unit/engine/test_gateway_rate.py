"""How often a gateway calls Slurm's commands."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import cast

from rlsched.engine.facts import Facts
from rlsched.engine.fallback import Alive
from rlsched.engine.gateway import Gateway
from rlsched.engine.gateway_loop import Link, serve
from rlsched.engine.reader import Reader
from rlsched.engine.steps import Ask, Say
from rlsched.engine.writer import Writer
from rlsched.wire.messages import ForNode, Kill, Launch, Submit, Submitted, Welcome
from tests.support.fake_slurm import FakeSlurm

POLL_S, SLOW_S, POLLS = 0.1, 0.15, 6


class TimedReader(Reader):
    """Queries a Slurm in memory; the fourth query is a slow one."""

    def __init__(self, slurm: FakeSlurm, stop: threading.Event) -> None:
        super().__init__(("gpu",))
        self.slurm, self.stop = slurm, stop
        self.times: list[tuple[float, float]] = []

    def facts(self) -> Facts:
        began_s = time.monotonic()
        if len(self.times) == 3:
            self.stop.wait(SLOW_S)
        self.times.append((began_s, time.monotonic()))
        if len(self.times) >= POLLS:
            self.stop.set()
        return self.slurm.facts()


class ScriptedLink:
    """A link whose broker sends these messages, one batch per `receive`."""

    has_lost = False

    def __init__(self, stop: threading.Event) -> None:
        self.stop = stop
        self.sent: list[Say | Ask] = []
        self.batches: list[list[ForNode]] = []
        self.answers: list[tuple[tuple[str, str], object]] = []

    def send(self, steps: Sequence[Say | Ask]) -> None:
        self.sent += steps

    def renew(self) -> None:
        pass

    def receive(self, timeout_ms: int) -> tuple[list[ForNode], list[tuple[tuple[str, str], object]]]:
        self.stop.wait(timeout_ms / 1000)
        orders = self.batches.pop(0) if self.batches else []
        answers, self.answers = self.answers, []
        return orders, answers


def launch(job: int, key: str, gpu: int) -> ForNode:
    order = Launch(
        epoch=1,
        job=job,
        attempt=1,
        rank=0,
        num_ranks=1,
        nodes=["n1"],
        gpus=[gpu],
        command=["slurm", key, f"s{key}"],
        env={},
        cwd="",
    )
    return ForNode(node="n1", message=order)


def served(slurm: FakeSlurm, place: Path, link: ScriptedLink, sends: list[list[str]]) -> TimedReader:
    def send(lines: Sequence[str]) -> None:
        sends.append(list(lines))
        slurm.obey(lines)

    reader = TimedReader(slurm, link.stop)
    gateway = Gateway("slurm", "c", ("gpu",), Writer(send))
    serve(gateway, reader, cast(Link, link), Alive(place), POLL_S, link.stop)
    return reader


def test_slurm_is_never_polled_faster_than_set(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.step(time.time())
    times = served(slurm, tmp_path, ScriptedLink(threading.Event()), []).times
    assert len(times) >= POLLS
    for (began_s, ended_s), (next_s, _) in pairwise(times):
        # The gateway takes its times just outside of `facts`, and its thread can be interrupted in between.
        assert next_s - began_s >= 0.5 * POLL_S
        assert next_s - ended_s >= 0.5 * (ended_s - began_s), "an equal pause follows a slow query"


def test_decisions_of_one_moment_are_one_write(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.step(time.time())
    keys = [slurm.sbatch(1, runs_s=1e6) for _ in range(4)]
    link, sends = ScriptedLink(threading.Event()), list[list[str]]()
    welcome = Welcome(epoch=1, cluster="b1", heartbeat_s=2.0)

    def send(steps: Sequence[Say | Ask]) -> None:
        offered = [one for one in steps if isinstance(one, Ask) and isinstance(one.message, Submit)]
        link.answers += [(one.about, Submitted(job=10 + int(one.about[1]))) for one in offered]
        if any(isinstance(step, Say) for step in steps) and not link.sent:
            link.batches.append([ForNode(node=node, message=welcome) for node in slurm.nodes])
        if len(offered) == len(keys):
            orders = [launch(10 + int(key), key, gpu) for gpu, key in enumerate(keys)]
            kill = ForNode(node="n1", message=Kill(epoch=1, job=11, attempt=1, rank=0, again=True))
            link.batches += [[], [*orders, kill]]
        link.sent += steps

    link.send = send  # type: ignore[method-assign]
    served(slurm, tmp_path, link, sends)
    first, second = sends[:2]
    assert len([line for line in first if "ReqNodeList" in line]) == len(keys)
    assert second == [f"hold {keys[0]}"], "a second write for a job comes after the first"
