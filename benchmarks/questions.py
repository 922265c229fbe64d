"""Cost of questions in the broker's loop: the part `questions` of `bench_runtime.py`."""

from __future__ import annotations

import gc
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlsched.broker.base.pauses import ShortPauses
from rlsched.broker.events import ClientAsked, NodeSaid
from rlsched.broker.journal.journal import Journal
from rlsched.decide.registry import load_scheduler
from rlsched.transport.roles import Peer
from rlsched.wire.messages import ClientRequest, Hello, Jobs, ListJobs, ListNodes, Nodes, Stats, Submit, Why
from tests.support.broker.hand_broker import HandBroker

NODES, GPUS_A_NODE = 1_250, 8
RUNNING, WAITING = 2_500, 9_500
RUNNING_GPUS, WAITING_GPUS = (4,), (1, 2, 4, 8, 4, 16)
TARGET_MS = 5.0
"""Time for questions in a turn of the loop, ms. It is the limit for each single answer."""
BATCH = 500


def crowded(policy: str, directory: Path) -> HandBroker:
    """Return a broker without sockets. Jobs use all GPUs, and `WAITING` jobs are in the queue."""
    broker = HandBroker(load_scheduler(policy), Journal(directory / "journal.sqlite"))
    names = [f"n{number}" for number in range(NODES)]
    broker.batch([NodeSaid(name, 0, Hello(name=name, gpus=GPUS_A_NODE)) for name in names])
    sizes = [*itertools.islice(itertools.cycle(RUNNING_GPUS), RUNNING)]
    sizes += itertools.islice(itertools.cycle(WAITING_GPUS), WAITING)
    submitted = [
        Submit(token=f"t{k}", command=["train"], num_gpus=gpus, user=f"u{k % 20}")
        for k, gpus in enumerate(sizes)
    ]
    jobs = [ClientAsked(b"u", k, one, Peer("admin", "u")) for k, one in enumerate(submitted)]
    for first in range(0, len(jobs), BATCH):
        broker.batch(jobs[first : first + BATCH])
    return broker


def asked(policy: str, repeats: int) -> Iterator[dict[str, Any]]:
    """Yield, for each question, the milliseconds of the loop for one answer, and for all pages of a list."""
    with tempfile.TemporaryDirectory() as directory:
        broker = crowded(policy, Path(directory))
        ShortPauses().step()  # as a broker's loop does
        late = len(broker.state.jobs)
        for what, walk in (
            ("queue", _walk_jobs),
            ("nodes", _walk_nodes),
            ("why, a waiting job", lambda broker: [_ask(broker, Why(job=late - 1))[0]]),
            ("why, a running job", lambda broker: [_ask(broker, Why(job=5))[0]]),
            ("top", lambda broker: [_ask(broker, Stats())[0]]),
        ):
            walk(broker)  # compiles the missing kernels
            walks_ms = [walk(broker) for _ in range(repeats)]
            answers_ms = np.concatenate(walks_ms)
            yield {
                "policy": policy,
                "what": what,
                "answers": len(walks_ms[0]),
                "p50_ms": float(np.median(answers_ms)),
                "longest_ms": float(np.median([max(walk_ms) for walk_ms in walks_ms])),
                "all_ms": float(np.median([sum(walk_ms) for walk_ms in walks_ms])),
            }
        broker.journal.close()
        gc.unfreeze()


def _ask(broker: HandBroker, question: ClientRequest) -> tuple[float, Any]:
    broker.sent.replies.clear()  # as in a broker
    began_ns = time.perf_counter_ns()
    reply = broker.ask(question)
    return (time.perf_counter_ns() - began_ns) / 1e6, reply


def _walk_jobs(broker: HandBroker) -> list[float]:
    took_ms, page = _ask(broker, ListJobs())
    times_ms = [took_ms]
    while isinstance(page, Jobs) and page.omitted:
        took_ms, page = _ask(broker, ListJobs(before=page.jobs[0].job))
        times_ms.append(took_ms)
    return times_ms


def _walk_nodes(broker: HandBroker) -> list[float]:
    took_ms, page = _ask(broker, ListNodes())
    times_ms = [took_ms]
    while isinstance(page, Nodes) and page.omitted:
        took_ms, page = _ask(broker, ListNodes(after=page.nodes[-1].name))
        times_ms.append(took_ms)
    return times_ms
