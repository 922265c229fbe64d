"""A change of a job's request while the table of requests is full: the queues hold each job once."""

from __future__ import annotations

import numpy as np

from rlsched.cluster.arrays import RUNNING
from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue


def full_table() -> tuple[ClusterState, list[int]]:
    """A cluster with a waiting job of each request, where the next new request enlarges the table."""
    state = ClusterState.from_spec(ClusterSpec.uniform(4, 8), OrderedQueue(Order()))
    seqs: list[int] = []
    while len(seqs) < 3 or len(state.demands) < len(state.arrays.demand):
        more = {"num_gpus": len(seqs) + 1, "submit_s": float(len(seqs)), "predicted_s": 60.0, "spread": 1.0}
        seqs.append(state.add_job(**more))  # type: ignore[arg-type]
    return state, seqs


def queued(state: ClusterState) -> list[int]:
    return state.arrays.job.seq[state.queue(0)].tolist()


def test_new_gpu_types_keep_the_queue() -> None:
    state, seqs = full_table()
    state.ask_for_types(seqs[-1], ["generic"])
    assert queued(state) == seqs
    state.start(seqs[-1], list(range(len(seqs))), 10.0)
    assert queued(state) == seqs[:-1]


def test_more_gpu_memory_after_an_attempt_keeps_queue_and_running_jobs() -> None:
    state, seqs = full_table()
    state.start(seqs[0], [0], 10.0)
    state.start(seqs[1], [8, 9], 10.0)
    state.requeue(seqs[0], 20.0, 40_000)
    assert queued(state) == [seqs[0], *seqs[2:]]
    running = np.flatnonzero(state.arrays.job.status == RUNNING)
    assert state.arrays.job.seq[running].tolist() == [seqs[1]] == state.running()
