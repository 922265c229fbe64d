"""Jobs on a real GPU: a broker that shares GPUs, a node daemon, and loads that only need the driver.

`tests/integration/test_gpu_tests.py` runs some of them on fake libraries of NVML and CUDA.
"""

from __future__ import annotations

import os
import signal

import pytest

from rlsched.errors import InputError
from rlsched_node.gpu.device import GpuSet
from tests.gpu.conftest import OneGpu, ended, pid_of, total_mib, works
from tests.support.online.cluster import all_up, until

pytestmark = pytest.mark.gpu


def used_mib(gpus: GpuSet) -> int:
    used = gpus.memory_used_mib(0)
    assert used is not None
    return used


def test_two_jobs_share_the_gpu_and_are_measured_separately(cluster: OneGpu, gpus: GpuSet) -> None:
    small, large = 64, 96
    with cluster.client() as client:
        one = cluster.load(client, "one", mib=small, gpu_memory_mib=total_mib(gpus) // 20)
        until(lambda: works(client, one), "the first job works")
        two = cluster.load(client, "two", mib=large, gpu_memory_mib=total_mib(gpus) // 20, exit_code=5)
        until(lambda: works(client, two), "the second job works")
        assert client.job(one).beside == [str(two)]
        until(lambda: client.job(one).usage and client.job(two).usage, "both are measured", 180.0)
        for job, mib in ((one, small), (two, large)):
            usage = client.job(job).usage
            assert usage is not None
            assert usage.gpu_memory_mib is None or mib <= usage.gpu_memory_mib <= mib + 1024
        (cluster.directory / "two").touch()
        assert ended(client, two) == ("failed", 5)
        assert works(client, one), "its neighbour continues"
        (cluster.directory / "one").touch()
        assert ended(client, one) == ("completed", 0)


def test_job_waits_for_gpu_memory_that_is_not_free(cluster: OneGpu, gpus: GpuSet) -> None:
    """The first job holds more than it requested: the broker expects room, and the node finds none."""
    total = total_mib(gpus)
    with cluster.client() as client:
        with pytest.raises(InputError):
            cluster.load(client, "never", mib=1, gpu_memory_mib=2 * total)
        holder = cluster.load(client, "holder", mib=total * 6 // 10, gpu_memory_mib=total // 20)
        until(lambda: works(client, holder), "the first job holds the memory")
        waits = cluster.load(client, "waits", mib=1, gpu_memory_mib=total * 8 // 10)
        until(lambda: "MiB free, and the job asks for" in str(client.why(waits)), "the node refuses the job")
        (cluster.directory / "waits").touch()
        (cluster.directory / "holder").touch()
        assert ended(client, holder) == ("completed", 0)
        assert ended(client, waits) == ("completed", 0)


def test_job_out_of_gpu_memory_runs_again_without_neighbours(cluster: OneGpu, gpus: GpuSet) -> None:
    total = total_mib(gpus)
    with cluster.client() as client:
        holder = cluster.load(client, "holder", mib=total * 6 // 10, gpu_memory_mib=total // 20)
        until(lambda: works(client, holder), "the first job holds the memory")
        greedy = cluster.load(client, "greedy", mib=total * 6 // 10, gpu_memory_mib=total // 20)
        until(
            lambda: client.job(greedy).attempt == 1 and client.job(greedy).state == "queued", "it waits again"
        )
        assert "was out of GPU memory on shared GPUs: it will not share again" in str(client.why(greedy))
        assert works(client, holder), "its neighbour continues"
        for gate in ("greedy", "holder"):
            (cluster.directory / gate).touch()
        assert ended(client, holder) == ("completed", 0)
        assert ended(client, greedy) == ("completed", 0)
        assert client.job(greedy).attempt == 2


def test_killed_process_frees_its_memory_and_the_gpu(cluster: OneGpu, gpus: GpuSet) -> None:
    before = used_mib(gpus)
    with cluster.client() as client:
        job = cluster.load(client, "gate", mib=512, gpu_memory_mib=600)
        until(lambda: works(client, job), "the job works")
        assert used_mib(gpus) >= before + 512
        os.kill(pid_of(client, job), signal.SIGKILL)
        assert ended(client, job) == ("failed", 137)
        until(lambda: used_mib(gpus) <= before + 64, "its memory is free")
        until(lambda: [node.free_gpus for node in client.nodes()] == [1], "its GPU is free")
        again = cluster.load(client, "again", mib=512, gpu_memory_mib=600)
        (cluster.directory / "again").touch()
        assert ended(client, again) == ("completed", 0)


def test_next_daemon_adopts_jobs_with_processes_on_the_gpu(cluster: OneGpu, gpus: GpuSet) -> None:
    """Their processes are not taken for foreign ones, so that the GPU stays in service."""
    memory_mib = total_mib(gpus) // 20
    with cluster.client() as client:
        one = cluster.load(client, "one", mib=64, gpu_memory_mib=memory_mib, exit_code=3)
        until(lambda: works(client, one), "the first job works")
        two = cluster.load(client, "two", mib=64, gpu_memory_mib=memory_mib)
        until(lambda: works(client, two), "the second job works")
        pids = [pid_of(client, job) for job in (one, two)]
        cluster.kill("n0")
        cluster.start("n0")
        all_up(client, 1)
        until(lambda: client.job(one).usage and client.job(two).usage, "both are measured", 180.0)
        assert [client.job(job).attempt for job in (one, two)] == [1, 1]
        assert [pid_of(client, job) for job in (one, two)] == pids
        assert client.stats().gpus_out == 0
        for gate in ("one", "two"):
            (cluster.directory / gate).touch()
        assert ended(client, one) == ("failed", 3)
        assert ended(client, two) == ("completed", 0)
