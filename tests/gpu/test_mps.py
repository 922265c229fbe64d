"""Jobs that share a real GPU under MPS: a broker, a node daemon, and loads that only need the driver.

The node daemon starts and ends the control daemons. `tests/integration/test_gpu_tests.py` runs these tests on
fake libraries of NVML and CUDA and a fake control program.
"""

from __future__ import annotations

import os
import signal

import pytest

from rlsched.broker.base.entries import AttemptEnding, AttemptOver, RankEnded
from rlsched.broker.journal.reading import read_journal
from rlsched.client.client import Client
from rlsched.wire.messages import MPS_FAULT, MPS_NEIGHBOUR_FAULT
from rlsched_node.gpu.device import GpuSet
from rlsched_node.mps.control import MpsControl, MpsError
from tests.gpu.conftest import OneGpu, ended, pid_of, total_mib, works
from tests.support.online.cluster import DEADLINE_S, all_up, until

pytestmark = pytest.mark.gpu


def begin(cluster: OneGpu, client: Client, gpus: GpuSet, mib: list[int], exit_code: int = 0) -> list[int]:
    """Loads that share the GPU, one for each size, with a tenth of the GPU's memory as their limit.

    The gate of the load at position N is the file `gateN`; only the first has the exit code.
    """
    jobs = []
    for number, size in enumerate(mib):
        job = cluster.load(
            client,
            f"gate{number}",
            mib=size,
            gpu_memory_mib=total_mib(gpus) // 10,
            exit_code=0 if number else exit_code,
        )
        until(lambda job=job: works(client, job), f"load {number} works")  # type: ignore[misc]
        jobs.append(job)
    return jobs


def clients(cluster: OneGpu) -> frozenset[int]:
    """Clients of the node's only control daemon."""
    (pipes,) = cluster.pipes
    return MpsControl(pipes.parent, [], None, os.environ, set()).clients()


def has_left(cluster: OneGpu, pid: int) -> bool:
    """Whether a process is no client of a control daemon of the node, or all of its daemons are ending."""
    try:
        return pid not in clients(cluster)
    except (MpsError, ValueError):
        return True


def is_seen_without_mps(client: Client, job: int) -> bool:
    """Whether `rlsched why` and `rlsched nodes` report that the job runs without MPS.

    If only one of them does, the report of the node came between the two requests: both are asked again.
    """

    def answers() -> set[bool]:
        in_nodes = f"job {job} without MPS" in " ".join(client.nodes()[0].notes)
        return {"runs without MPS" in str(client.why(job)), in_nodes}

    seen = answers()
    if len(seen) == 2:
        seen = answers()
    assert len(seen) == 1
    return seen.pop()


def open_gates(cluster: OneGpu, numbers: range) -> None:
    for number in numbers:
        (cluster.directory / f"gate{number}").touch()


@pytest.mark.parametrize("count", [2, 4])
def test_jobs_are_clients_of_one_daemon_and_measured_separately(
    mps_cluster: OneGpu, gpus: GpuSet, count: int
) -> None:
    sizes = [(number + 1) * total_mib(gpus) // 100 for number in range(count)]
    with mps_cluster.client() as client:
        jobs = begin(mps_cluster, client, gpus, sizes, exit_code=5)
        assert client.job(jobs[-1]).beside == [str(job) for job in jobs[:-1]]
        assert [client.job(job).shared_by for job in jobs] == [["mps"]] * count
        assert clients(mps_cluster) == {pid_of(client, job) for job in jobs}
        until(lambda: all(client.job(job).usage for job in jobs), "all are measured", 180.0)
        for job, mib in zip(jobs, sizes, strict=True):
            usage = client.job(job).usage
            assert usage is not None
            assert usage.gpu_memory_mib is None or mib <= usage.gpu_memory_mib <= mib + 1024
        open_gates(mps_cluster, range(1))
        assert ended(client, jobs[0]) == ("failed", 5)
        assert all(works(client, job) for job in jobs[1:]), "its neighbours continue"
        open_gates(mps_cluster, range(1, count))
        assert [ended(client, job) for job in jobs[1:]] == [("completed", 0)] * (count - 1)
        assert {client.job(job).attempt for job in jobs} == {1}
        until(lambda: not mps_cluster.mps_processes, "no MPS process is left")


def test_process_that_is_no_client_is_reported_and_its_neighbours_are_not(
    mps_cluster: OneGpu, gpus: GpuSet
) -> None:
    with mps_cluster.client() as client:
        jobs = begin(mps_cluster, client, gpus, [total_mib(gpus) // 100] * 2)
        apart = mps_cluster.load(
            client, "apart", mib=1, gpu_memory_mib=total_mib(gpus) // 10, without="CUDA_MPS_PIPE_DIRECTORY"
        )
        until(lambda: works(client, apart), "it works")
        until(lambda: is_seen_without_mps(client, apart), "the node reports it", 180.0)
        assert not any(is_seen_without_mps(client, job) for job in jobs)
        assert clients(mps_cluster) == {pid_of(client, job) for job in jobs}
        open_gates(mps_cluster, range(2))
        (mps_cluster.directory / "apart").touch()
        assert [ended(client, job) for job in (*jobs, apart)] == [("completed", 0)] * 3


def test_memory_limit_holds_for_a_client_and_its_neighbour_continues(
    mps_cluster: OneGpu, gpus: GpuSet
) -> None:
    """The GPU has the memory that the job wants, so without the limit it would get it."""
    total = total_mib(gpus)
    with mps_cluster.client() as client:
        (neighbour,) = begin(mps_cluster, client, gpus, [total // 100])
        greedy = mps_cluster.load(client, "greedy", mib=total // 4, gpu_memory_mib=total // 10)
        until(lambda: client.job(greedy).state == "queued" and client.job(greedy).attempt == 1, "it is ended")
        assert "was out of GPU memory on shared GPUs: it will not share again" in str(client.why(greedy))
        assert works(client, neighbour), "its neighbour continues"
        open_gates(mps_cluster, range(1))
        (mps_cluster.directory / "greedy").touch()
        assert ended(client, neighbour) == ("completed", 0)
        assert ended(client, greedy) == ("completed", 0), "without co-tenants there is no limit"
        assert client.job(greedy).attempt == 2


def ended_attempts(cluster: OneGpu, job: int) -> list[tuple[str, bool]]:
    """(Reason of the rank's end, whether a retry is counted) of each attempt after which a job was queued."""
    facts = [row.entry for row in read_journal(cluster.journal)]
    reasons = {one.attempt: one.reason for one in facts if isinstance(one, RankEnded) and one.job == job}
    charged = {one.attempt: one.charged for one in facts if isinstance(one, AttemptEnding) and one.job == job}
    again = [
        one for one in facts if isinstance(one, AttemptOver) and (one.job, one.outcome) == (job, "queued")
    ]
    return [(reasons[one.attempt], charged[one.attempt]) for one in again]


def test_neighbour_of_a_killed_client_continues_or_starts_again_uncharged(
    mps_cluster: OneGpu, gpus: GpuSet
) -> None:
    """NVIDIA leaves open what a client that ends with unfinished work does to others (guide to MPS).

    If nothing names the killed client as the cause, it starts again too.
    """
    with mps_cluster.client() as client:
        neighbour, killed = begin(mps_cluster, client, gpus, [total_mib(gpus) // 100] * 2)
        until(lambda: all(client.job(job).usage for job in (neighbour, killed)), "both are measured", 180.0)
        pid = pid_of(client, killed)
        os.kill(pid, signal.SIGKILL)
        until(lambda: has_left(mps_cluster, pid), "the server has noticed that its client was killed")
        until(
            lambda: (client.job(killed).state, client.job(killed).attempt) != ("running", 1),
            "its end is reported",
        )
        open_gates(mps_cluster, range(2))
        assert ended(client, neighbour) == ("completed", 0)
        end, again = (
            ended(client, killed),
            {job: ended_attempts(mps_cluster, job) for job in (neighbour, killed)},
        )
        print("ended by the fault:", again)
        assert again[neighbour] in ([], [(MPS_NEIGHBOUR_FAULT, False)], [(MPS_FAULT, False)])
        assert (end, again[killed]) in ((("failed", 137), []), (("completed", 0), [(MPS_FAULT, False)]))
        memory_mib = total_mib(gpus) // 10
        other = mps_cluster.load(client, "other", mib=memory_mib // 10, gpu_memory_mib=memory_mib)
        until(lambda: works(client, other), "another load works")
        (mps_cluster.directory / "other").touch()
        assert ended(client, other) == ("completed", 0), "the GPU can be used"
        until(lambda: not mps_cluster.mps_processes, "no MPS process is left")


def test_control_daemon_is_adopted_after_kill_9_and_ends_with_its_jobs(
    mps_cluster: OneGpu, gpus: GpuSet
) -> None:
    sizes = [total_mib(gpus) // 100] * 2
    with mps_cluster.client() as client:
        jobs = begin(mps_cluster, client, gpus, sizes, exit_code=3)
        pids, before = [pid_of(client, job) for job in jobs], mps_cluster.mps_processes
        mps_cluster.kill("n0")
        mps_cluster.start("n0")
        all_up(client, 1)
        assert mps_cluster.mps_processes == before
        assert clients(mps_cluster) == set(pids)
        assert [(client.job(job).state, client.job(job).attempt) for job in jobs] == [("running", 1)] * 2
        open_gates(mps_cluster, range(1))
        assert ended(client, jobs[0]) == ("failed", 3)
        assert mps_cluster.mps_processes == before
        open_gates(mps_cluster, range(1, 2))
        assert ended(client, jobs[1]) == ("completed", 0)
        until(lambda: not mps_cluster.mps_processes, "no MPS process is left")


def test_daemon_whose_jobs_ended_after_kill_9_is_ended_by_the_next_node_daemon(
    mps_cluster: OneGpu, gpus: GpuSet
) -> None:
    with mps_cluster.client() as client:
        jobs = begin(mps_cluster, client, gpus, [total_mib(gpus) // 100] * 2)
        pids = [pid_of(client, job) for job in jobs]
        mps_cluster.kill("n0")
        open_gates(mps_cluster, range(2))
        until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "the loads have ended")
        assert mps_cluster.mps_processes
        mps_cluster.start("n0")
        assert [ended(client, job) for job in jobs] == [("completed", 0)] * 2
        until(lambda: not mps_cluster.mps_processes, "no MPS process is left")


def test_no_mps_process_is_left_after_the_node_ends(mps_cluster: OneGpu, gpus: GpuSet) -> None:
    """A node daemon that stops leaves the control daemon to its jobs; one without jobs leaves none."""
    with mps_cluster.client() as client:
        (job,) = begin(mps_cluster, client, gpus, [total_mib(gpus) // 100])
        before = mps_cluster.mps_processes
        mps_cluster.running["n0"].terminate()
        mps_cluster.running["n0"].wait(DEADLINE_S)
        assert mps_cluster.mps_processes == before
        mps_cluster.start("n0")
        all_up(client, 1)
        open_gates(mps_cluster, range(1))
        assert ended(client, job) == ("completed", 0)
        mps_cluster.running["n0"].terminate()
        mps_cluster.running["n0"].wait(DEADLINE_S)
        assert not mps_cluster.mps_processes
        mps_cluster.start("n0")
