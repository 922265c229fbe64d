"""Jobs that a broker gets at once and runs once, with given run times: the start of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlsched.wire.messages import Submit, Submitted
from tests.support.broker.hand import ended, launched
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.job_arrays import settle


class Began(NamedTuple):
    """The start of a job, seconds after the submissions, and its GPUs by node."""

    start_s: float
    gpus: dict[int, list[int]]


def first_starts(broker: HandBroker, asked: Sequence[tuple[Submit, float]]) -> list[Began]:
    """Submit the jobs, and end each after its run time; returns their starts.

    Args:
        broker: A broker whose nodes n0, n1, ... are up.
        asked: Submissions with run times, seconds; no two jobs may end at one time.
    """
    duration_s: dict[int, float] = {}
    for message, seconds in asked:
        reply = broker.ask(message)
        assert isinstance(reply, Submitted), reply
        duration_s[reply.job] = seconds
    began_s = broker.now_s
    starts: dict[int, Began] = {}
    ends: dict[int, float] = {}
    while True:
        settle(broker)
        for job, one in list(broker.state.jobs.items()):
            if one.state == "launching":
                ranks = one.attempt.ranks if one.attempt is not None else []
                start_s = float(round(broker.now_s - began_s))
                starts[job] = Began(start_s, {int(rank.node[1:]): list(rank.gpus) for rank in ranks})
                ends[job] = start_s + duration_s[job]
                for number, rank in enumerate(ranks):
                    broker.says(rank.node, launched(job, rank=number))
        if not ends:
            return [starts[job] for job in duration_s]
        job = min(ends, key=ends.__getitem__)
        left_s = max(began_s + ends.pop(job) - broker.now_s, 0.001)
        for number, node in enumerate(starts[job].gpus):
            broker.says(f"n{node}", ended(job, rank=number), after_s=left_s if number == 0 else 0.001)
