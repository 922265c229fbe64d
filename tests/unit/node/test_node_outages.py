"""GPUs out of service: lost, or in use by a foreign process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from rlsched.models.memory import MARGIN_FRAC
from rlsched.wire.messages import Holding
from rlsched_node.gpu.device import GpuError, GpuLostError, GpuProcess, GpuReading
from rlsched_node.gpu.simulated import SimulatedGpus
from rlsched_node.processes.free_memory import LOOKS, STEP_FRAC, STEP_MIB
from rlsched_node.processes.launch import LaunchError
from rlsched_node.processes.outages import (
    BACK_AFTER_LOOKS,
    BACK_AFTER_SHORT_LOOKS,
    OUT_AFTER_LOOKS,
    UNLISTED_MOST_FRAC,
    Outages,
)


class CrowdedGpus(SimulatedGpus):
    """Foreign processes use GPU 1."""

    def __init__(self, *guests: int) -> None:
        super().__init__(2)
        self.guests = list(guests)
        self.error: GpuError | None = None

    def foreign_processes(self, gpu: int, is_ours: Callable[[int], bool]) -> list[GpuProcess]:
        if self.error is not None and gpu == 1:
            raise self.error
        guests = [GpuProcess(pid, 18432) for pid in self.guests] if gpu == 1 else []
        return [guest for guest in guests if not is_ours(guest.pid)]


@pytest.fixture
def other() -> Iterator[int]:
    """A process of another program."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


def read(outages: Outages, gpu: int, *pids: int, ours: frozenset[int] = frozenset()) -> None:
    outages.is_read(gpu, GpuReading(processes=tuple(GpuProcess(pid, 18432) for pid in pids)), ours)
    outages.look_done()


def looks_well(outages: Outages, gpu: int, looks: int = BACK_AFTER_LOOKS) -> None:
    for _ in range(looks):
        read(outages, gpu)


def test_gpu_in_use_by_a_foreign_process_is_out_until_free_for_a_time(other: int) -> None:
    outages = Outages(2, lambda _: False)
    read(outages, 0)
    read(outages, 1, other)
    name = os.path.basename(sys.executable)[:15]
    why = f"in use by process {other} ({name}, 18432 MiB), not started by rlsched"
    assert outages.holdings == [Holding(by=why, gpus=[1])]
    read(outages, 1, os.getpid(), other)
    assert outages.holdings == [Holding(by=why, gpus=[1])], "a further process changes nothing"
    looks_well(outages, 1, BACK_AFTER_LOOKS - 1)
    assert len(outages.holdings) == 1
    read(outages, 1, other)
    looks_well(outages, 1, BACK_AFTER_LOOKS - 1)
    assert len(outages.holdings) == 1, "it counts from the last check that found the process"
    looks_well(outages, 1, 1)
    assert outages.holdings == []
    assert outages.all_lost == []


def test_processes_of_ranks_and_marked_processes_are_not_foreign(other: int) -> None:
    outages = Outages(1, lambda pid: pid == os.getpid())
    read(outages, 0, os.getpid(), other, ours=frozenset({other}))
    read(outages, 0, os.getpid(), other)
    assert outages.holdings == [], "a rank's process stays its own after its rank is no longer checked"


def test_process_on_a_ranks_gpu_belongs_to_the_rank_until_it_ends(other: int) -> None:
    """Processes in a container are not children of the rank that started it."""
    outages = Outages(2, lambda _: False)
    outages.busy = frozenset({1})
    read(outages, 0, other)
    read(outages, 1, other)
    assert [one.gpus for one in outages.holdings] == [[0]]
    outages.busy = frozenset()
    read(outages, 1, other)
    assert [one.gpus for one in outages.holdings] == [[0], [1]]


def test_ended_process_is_not_foreign_at_once() -> None:
    with subprocess.Popen(["true"]) as process:
        pid = process.pid
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        outages = Outages(1, lambda _: False)
        for _ in range(2):
            read(outages, 0, pid)
            assert outages.holdings == [], "a zombie computes nothing"
    read(outages, 0)
    read(outages, 0, pid)
    assert outages.holdings == [], "the driver still lists it for a time"
    read(outages, 0, pid)
    assert len(outages.holdings) == 1, "a process of another PID namespace stays"


def test_lost_gpu_is_named_with_its_first_error() -> None:
    outages = Outages(2, lambda _: False)
    outages.is_lost(1, GpuLostError("NVML, memory(1,): GPU is lost"))
    outages.is_lost(1, GpuLostError("NVML, power_mw(1,): GPU is lost"))
    assert outages.holdings == [Holding(by="lost: NVML, memory(1,): GPU is lost", gpus=[1])]
    outages.is_lost(0, GpuLostError("Unknown Error"))
    assert outages.holdings == []
    assert outages.all_lost == [
        "GPU 0 is lost: Unknown Error",
        "GPU 1 is lost: NVML, memory(1,): GPU is lost",
    ]
    looks_well(outages, 0)
    assert [one.gpus for one in outages.holdings] == [[1]]


def test_launch_checks_again_and_takes_the_gpu_out(other: int) -> None:
    gpus, outages = CrowdedGpus(other), Outages(2, lambda _: False)
    outages.refuse(gpus, [0])
    with pytest.raises(
        LaunchError, match=rf"GPU 1 is in use by process {other} \(.*18432 MiB\), not"
    ) as caught:
        outages.refuse(gpus, [0, 1])
    assert caught.value.is_for_now
    assert [one.gpus for one in outages.holdings] == [[1]]
    gpus.guests = []
    outages.refuse(gpus, [1])
    gpus.error = GpuLostError("NVML, processes(1,): GPU is lost")
    with pytest.raises(LaunchError, match=r"GPU 1 is lost: NVML, processes\(1,\): GPU is lost") as caught:
        outages.refuse(gpus, [1])
    assert caught.value.is_for_now
    gpus.error = None
    with pytest.raises(LaunchError, match="GPU 1 is lost"):
        outages.refuse(gpus, [1])
    looks_well(outages, 1)
    outages.refuse(gpus, [1])


def read_memory(outages: Outages, used_mib: int, *processes: GpuProcess, times: int = 1) -> None:
    for _ in range(times):
        reading = GpuReading(memory_used_mib=used_mib, processes=processes)
        outages.is_read(0, reading, frozenset({os.getpid()}), 80_000)
        outages.look_done()


def test_gpu_whose_memory_no_process_explains_is_out_after_a_time() -> None:
    outages = Outages(1, lambda _: False)
    read_memory(outages, 4_000, times=OUT_AFTER_LOOKS)
    assert outages.holdings == [], "the driver may reserve 5 %"
    read_memory(outages, 4_001, times=OUT_AFTER_LOOKS - 1)
    assert outages.holdings == [], "a killed process may be the cause"
    read_memory(outages, 4_000)
    read_memory(outages, 9_000, times=OUT_AFTER_LOOKS)
    read_memory(outages, 9_050)
    for _ in range(2 * BACK_AFTER_LOOKS):
        outages.is_read(0, None)
    why = "short of memory: 9000 MiB are in use by no process that the driver lists"
    assert outages.holdings == [Holding(by=why, gpus=[0])]
    assert outages.all_lost == []
    with pytest.raises(LaunchError, match="GPU 0 is short of memory: 9000 MiB"):
        outages.refuse(SimulatedGpus(1), [0])
    read_memory(outages, 400, times=BACK_AFTER_LOOKS)
    assert outages.holdings == []


def test_memory_of_ranks_and_of_unknown_size_takes_no_gpu_out() -> None:
    outages = Outages(1, lambda _: False)
    read_memory(outages, 50_000, GpuProcess(os.getpid(), 49_000), times=2 * OUT_AFTER_LOOKS)
    read_memory(outages, 50_000, GpuProcess(os.getpid(), None), times=2 * OUT_AFTER_LOOKS)
    for _ in range(2 * OUT_AFTER_LOOKS):
        outages.is_read(
            0, GpuReading(memory_used_mib=50_000, processes=()), frozenset(), 80_000, lambda: 49_000
        )
    outages.busy = frozenset({0})
    read_memory(outages, 50_000, times=2 * OUT_AFTER_LOOKS)
    assert outages.holdings == [], "in a container, the driver may not list the processes of ranks"


def test_memory_that_small_gpus_may_lack_stays_free_on_shared_gpus() -> None:
    assert UNLISTED_MOST_FRAC == MARGIN_FRAC
    outages = Outages(1, lambda _: False)
    for used_mib, is_out in ((1_600, False), (1_700, True)):
        for _ in range(OUT_AFTER_LOOKS):
            outages.is_read(0, GpuReading(memory_used_mib=used_mib, processes=()), frozenset(), 16_160)
        assert bool(outages.holdings) == is_out


class FullGpus(SimulatedGpus):
    """GPU 1 has 9,000 MiB in use by no job."""

    def __init__(self) -> None:
        super().__init__(2)
        self.used_mib = 9000

    def memory_used_mib(self, gpu: int) -> int:
        return self.used_mib if gpu == 1 else 0


def look_at_memory(outages: Outages, gpus: FullGpus, looks: int) -> None:
    reading = GpuReading(memory_used_mib=gpus.used_mib, processes=(GpuProcess(1, gpus.used_mib),))
    for _ in range(looks):
        outages.is_read(1, reading, frozenset({1}), gpus.memory_total_mib(1))


def short_of_memory() -> tuple[Outages, FullGpus, int, list[Holding]]:
    """A GPU on which a job was refused, with the request of the job, MiB, and the reason."""
    gpus, outages = FullGpus(), Outages(2, lambda _: False)
    total_mib = gpus.memory_total_mib(1) or 0
    asked_mib = total_mib - 8999
    with pytest.raises(LaunchError) as failed:
        outages.refuse_short(gpus, [0, 1], asked_mib, are_shared=False)
    assert failed.value.is_for_now
    assert failed.value.is_about_memory
    found = f"{total_mib - 9000} of {total_mib} MiB free, and the job asks for {asked_mib}"
    assert str(failed.value) == f"GPU 1 has {found}"
    return outages, gpus, asked_mib, [Holding(by=f"short of memory: {found}", gpus=[1])]


def test_gpu_with_too_little_memory_for_a_job_is_out_for_half_a_minute() -> None:
    outages, gpus, asked_mib, why = short_of_memory()
    assert outages.holdings == why
    outages.refuse(gpus, [1])  # an order that was sent before the broker knew: its own memory decides
    outages.refuse_short(gpus, [1], asked_mib - 1, are_shared=False)
    look_at_memory(outages, gpus, BACK_AFTER_SHORT_LOOKS - 1)
    assert outages.holdings == why
    look_at_memory(outages, gpus, 1)
    assert outages.holdings == [], "other jobs may request less"


def test_gpu_with_enough_memory_again_returns_at_once() -> None:
    outages, gpus, _, why = short_of_memory()
    gpus.used_mib = 8999
    look_at_memory(outages, gpus, BACK_AFTER_LOOKS - 1)
    assert outages.holdings == why
    look_at_memory(outages, gpus, 1)
    assert outages.holdings == []


def test_shared_gpu_with_too_little_memory_for_a_job_stays_in_service() -> None:
    gpus, outages = FullGpus(), Outages(2, lambda _: False)
    with pytest.raises(LaunchError, match="GPU 1 has"):
        outages.refuse_short(gpus, [1], 10**6, are_shared=True)
    assert outages.holdings == []


def test_broker_that_is_told_the_free_memory_of_a_gpu_keeps_the_gpu_in_service() -> None:
    gpus, outages = FullGpus(), Outages(2, lambda _: False)
    total_mib = gpus.memory_total_mib(1) or 0
    with pytest.raises(LaunchError, match="GPU 1 has"):
        outages.refuse_short(gpus, [0, 1], total_mib - 8900, are_shared=False, is_told=True)
    assert outages.holdings == []
    assert outages.usable_mib == {1: total_mib - 9000}, "at once, and exact"
    gpus.used_mib = 8901
    look_at_memory(outages, gpus, 10)
    assert outages.usable_mib == {1: total_mib - 9000}, "not enough, and a small change"
    gpus.used_mib = 8900
    look_at_memory(outages, gpus, LOOKS - 1)
    assert outages.usable_mib == {1: total_mib - 9000}
    look_at_memory(outages, gpus, 1)
    assert outages.usable_mib == {1: total_mib - 8900}, "enough for the job"


def test_memory_of_other_processes_is_reported_by_changes_beyond_a_threshold() -> None:
    gpus, outages = FullGpus(), Outages(2, lambda _: False)
    total_mib = gpus.memory_total_mib(1) or 0
    step_mib = int(max(STEP_MIB, total_mib * STEP_FRAC))
    gpus.used_mib = step_mib - 1
    look_at_memory(outages, gpus, 10)
    assert outages.usable_mib == {}, "the driver reserves some memory"
    gpus.used_mib = step_mib + 1
    outages.knows_busy = False
    look_at_memory(outages, gpus, 10)
    assert outages.usable_mib == {}, "it may belong to a rank of an earlier daemon"
    outages.knows_busy = True
    look_at_memory(outages, gpus, LOOKS)
    assert outages.usable_mib == {1: total_mib - step_mib - 1}
    outages.busy = frozenset({1})
    gpus.used_mib = 9000
    look_at_memory(outages, gpus, 10)
    assert outages.usable_mib == {}, "a rank uses the GPU, and all this memory"
    outages.busy = frozenset()
    look_at_memory(outages, gpus, LOOKS)
    assert outages.usable_mib == {1: total_mib - 9000}
    gpus.used_mib = 0
    look_at_memory(outages, gpus, LOOKS)
    assert outages.usable_mib == {}


def test_job_that_requests_nearly_all_memory_stays_refused() -> None:
    """The GPU keeps its exact figure, although little of its memory is in use."""
    gpus, outages = FullGpus(), Outages(2, lambda _: False)
    total_mib, gpus.used_mib = gpus.memory_total_mib(1) or 0, 100
    with pytest.raises(LaunchError, match="GPU 1 has"):
        outages.refuse_short(gpus, [1], total_mib, are_shared=False, is_told=True)
    look_at_memory(outages, gpus, 10)
    assert outages.usable_mib == {1: total_mib - 100}
    gpus.used_mib = 0
    look_at_memory(outages, gpus, LOOKS)
    assert outages.usable_mib == {}
