"""The meter's accounting: energy of boards, shares of jobs, usage of processes, and the times of reports."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.models.gpu_types import GPU_FIGURES
from rlsched.wire.messages import AttemptKey, Metered, RankMetered, RankUsage, decode, encode
from rlsched_node.gpu.device import GpuProcess, GpuReading
from rlsched_node.usage.books import TOLD_EVERY_S, WINDOW_S, Kept, NodeUsage, Place
from rlsched_node.usage.energy import MOST_W, Board, parts_frac
from rlsched_node.usage.processes import ProcessReading
from rlsched_node.usage.sums import UsageSums

A, B = AttemptKey(1, 1, 0, "c"), AttemptKey(2, 1, 0, "c")


def cpu(seconds: float, pids: tuple[int, ...] = (), **more: int | float | None) -> ProcessReading:
    known: dict[str, object] = {
        "memory_mib": 100,
        "read_bytes": None,
        "io_stall_s": None,
        "periods": None,
        "throttled": None,
    }
    return ProcessReading(cpu_s=seconds, pids=frozenset(pids), **(known | more))  # type: ignore[arg-type]


def energy_j(books: NodeUsage, key: AttemptKey, now_s: float) -> float:
    used = books.end(key, now_s)
    assert used is not None
    assert used.energy_j is not None
    return used.energy_j


# ---- energy of a board ----------------------------------------------------------------------------------


def test_power_replaces_a_counter_that_goes_back_or_jumps() -> None:
    board = Board()
    assert board.drawn_j(0.0, 5000.0, 100.0) is None
    assert board.drawn_j(1.0, 5110.0, 120.0) == 110.0
    assert board.drawn_j(2.0, 3.0, 140.0) == 130.0, "the driver was reloaded: the mean of 120 and 140 W"
    assert board.drawn_j(3.0, 153.0, 140.0) == 150.0, "the counter is used again"
    assert board.drawn_j(4.0, 153.0 + 2 * MOST_W, 160.0) == 150.0
    assert board.drawn_j(5.0, None, 160.0) == 160.0, "an unreadable counter"
    assert board.drawn_j(6.0, None, None) == 160.0, "from the power at one end"
    assert board.drawn_j(7.0, None, None) is None


@settings(deadline=None)
@given(
    watts=st.floats(1.0, 1200.0),
    weights=st.lists(st.one_of(st.none(), st.floats(0.0, 1.0)), min_size=1, max_size=5),
    kind=st.sampled_from(sorted(GPU_FIGURES)),
)
def test_shares_add_up_to_the_total(watts: float, weights: list[float | None], kind: str) -> None:
    parts = parts_frac(watts, weights, kind)
    assert math.fsum(parts) == pytest.approx(1.0)
    assert all(part > 0.0 for part in parts)
    if None in weights:
        assert parts == pytest.approx([1.0 / len(weights)] * len(weights))


def test_static_power_is_split_evenly_and_the_rest_by_use() -> None:
    static_w = GPU_FIGURES["V100"]["static_w"].value
    watts = static_w + 200.0
    first, second = parts_frac(watts, [0.6, 0.2], "Tesla V100-SXM2")
    assert first * watts == pytest.approx(static_w / 2 + 150.0)
    assert second * watts == pytest.approx(static_w / 2 + 50.0)
    assert parts_frac(watts, [0.6, None], "V100") == [0.5, 0.5]
    assert parts_frac(watts, [0.0, 0.0], "V100") == [0.5, 0.5]


# ---- shares of jobs -------------------------------------------------------------------------------------


def gpu(energy_j: float, power_w: float, shares: dict[int, float] | None = None) -> GpuReading:
    processes = None
    if shares is not None:
        processes = tuple(GpuProcess(pid, 1000 + pid, share) for pid, share in shares.items())
    return GpuReading(energy_j=energy_j, power_w=power_w, processes=processes, utilisation_frac=0.9)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_jobs_and_idle_energy_add_up_to_the_counter(data: st.DataObject) -> None:
    """In every order of starts and ends, exclusive or shared."""
    books, now_s, counter_j = NodeUsage(1, "A100"), 0.0, 1e6
    given_j, here = 0.0, set[int]()
    books.read(now_s, {0: gpu(counter_j, 60.0)}, {})
    for number in range(1, data.draw(st.integers(5, 25)) + 1):
        for at_s in sorted(data.draw(st.lists(st.floats(0.0, 0.99), max_size=2))):
            if here and data.draw(st.booleans()):
                job = data.draw(st.sampled_from(sorted(here)))
                here.discard(job)
                used = books.end(AttemptKey(job, 1, 0, "c"), now_s + at_s)
                given_j += 0.0 if used is None or used.energy_j is None else used.energy_j
            else:
                here.add(number * 10 + round(at_s * 9))
                job = number * 10 + round(at_s * 9)
                books.begin(AttemptKey(job, 1, 0, "c"), Place((0,), job), now_s + at_s)
        now_s += 1.0
        watts = data.draw(st.floats(50.0, 400.0))
        counter_j += watts
        books.read(now_s, {0: gpu(counter_j, watts, dict.fromkeys(here, 0.3))}, {})
    for _ in range(40):  # an overestimate at an end is subtracted from the next interval
        now_s += 1.0
        counter_j += 60.0
        books.read(now_s, {0: gpu(counter_j, 60.0, dict.fromkeys(here, 0.3))}, {})
    drawn_j = counter_j - 1e6
    assert books.drawn_j == pytest.approx(drawn_j)
    for job in here:
        given_j += energy_j(books, AttemptKey(job, 1, 0, "c"), now_s)
    assert given_j <= drawn_j * (1 + 1e-9)


def test_exclusive_job_has_all_energy_of_its_gpu() -> None:
    books = NodeUsage(2, "A100")
    books.read(0.0, {0: gpu(0.0, 300.0), 1: gpu(0.0, 60.0)}, {})
    books.begin(A, Place((0,), 1), 0.0)
    for second in range(1, 31):
        books.read(second, {0: gpu(300.0 * second, 300.0), 1: gpu(60.0 * second, 60.0)}, {})
    assert energy_j(books, A, 30.0) == pytest.approx(9000.0)
    assert books.drawn_j == pytest.approx(30 * 360.0)
    assert books.power_w == 360.0


def test_energy_after_the_last_reading_is_estimated_and_corrected() -> None:
    books = NodeUsage(1, "A100")
    books.read(0.0, {0: gpu(0.0, 300.0)}, {})
    books.begin(A, Place((0,), 1), 0.0)
    books.read(1.0, {0: gpu(300.0, 300.0)}, {})
    assert energy_j(books, A, 1.5) == pytest.approx(450.0)
    books.begin(B, Place((0,), 2), 1.5)
    books.read(2.0, {0: gpu(500.0, 100.0)}, {})
    assert energy_j(books, B, 2.0) == pytest.approx((200.0 - 150.0) * 0.5)


def test_rank_without_a_reading_has_no_usage() -> None:
    books = NodeUsage(1, "A100")
    books.read(0.0, {0: gpu(0.0, 300.0)}, {})
    books.begin(A, Place((0,), 1), 0.1)
    assert books.end(A, 0.9) is None
    assert books.end(B, 0.9) is None


def test_lost_gpu_keeps_its_energy_and_the_other_continues() -> None:
    books = NodeUsage(2, "A100")
    books.begin(A, Place((0, 1), 1), 0.0)
    books.read(0.0, {0: gpu(0.0, 100.0), 1: gpu(0.0, 100.0)}, {})
    books.read(1.0, {0: None, 1: gpu(100.0, 100.0)}, {})
    books.read(2.0, {0: None, 1: gpu(200.0, 100.0)}, {})
    assert energy_j(books, A, 2.0) == pytest.approx(200.0 + 200.0), (
        "the lost GPU's last power, for at most 2 s"
    )


# ---- figures of a rank ----------------------------------------------------------------------------------


def test_usage_excludes_the_co_tenant() -> None:
    books = NodeUsage(1, "A100")
    for key, pid in ((A, 11), (B, 22)):
        books.begin(key, Place((0,), pid - 1), 0.0)
    for second in (1, 2, 3):
        books.read(
            float(second),
            {0: gpu(300.0 * second, 300.0, {11: 0.6, 22: 0.1})},
            {A: cpu(2.0 * second, (11,)), B: cpu(0.5 * second, (22,))},
        )
    first, second_ = books.end(A, 3.0), books.end(B, 3.0)
    assert first is not None
    assert second_ is not None
    mine, theirs = first.usage(), second_.usage()
    assert (mine.gpu_milli, theirs.gpu_milli) == (600, 100)
    assert (mine.shared_gpu_milli, theirs.shared_gpu_milli) == (600, 100)
    assert (mine.gpu_memory_mib, theirs.gpu_memory_mib) == (1011, 1022)
    assert (mine.cpu_milli, theirs.cpu_milli, mine.measured_s) == (2000, 500, 3)
    assert mine.energy_mj is not None
    assert theirs.energy_mj is not None
    assert mine.energy_mj > 2 * theirs.energy_mj


def test_shared_gpu_time_is_of_own_processes_next_to_another_rank() -> None:
    books = NodeUsage(1, "A100")
    books.begin(A, Place((0,), 10), 0.0)
    books.read(1.0, {0: gpu(300.0, 300.0, {11: 0.9})}, {A: cpu(1.0, (11,))})
    assert books._ranks[A].window.usage().shared_gpu_milli is None, "alone"
    books.begin(B, Place((0,), 20), 1.0)
    books.read(2.0, {0: gpu(600.0, 300.0, {11: 0.5, 22: 0.4})}, {A: cpu(2.0, (11,)), B: cpu(1.0, (22,))})
    assert books._ranks[A].window.usage().shared_gpu_milli == 500
    used = books.end(B, 2.0)
    assert used is not None
    assert used.usage().shared_gpu_milli == 400
    unknown = NodeUsage(1, "A100")
    for key, pid in ((A, 11), (B, 22)):
        unknown.begin(key, Place((0,), pid), 0.0)
    unknown.read(1.0, {0: gpu(300.0, 300.0)}, {A: cpu(1.0), B: cpu(1.0)})
    assert unknown._ranks[A].window.usage().shared_gpu_milli is None, "the driver reports no processes"


def test_counters_of_a_rank_become_shares() -> None:
    books = NodeUsage(0, "generic")
    books.begin(A, Place((), 1), 0.0)
    books.read(1.0, {}, {A: cpu(1.0, io_stall_s=5.0, periods=10, throttled=1, read_bytes=3 << 20)})
    books.read(2.0, {}, {A: cpu(1.5, io_stall_s=5.25, periods=20, throttled=6, read_bytes=10 << 20)})
    used = books.end(A, 2.0)
    assert used is not None
    usage = used.usage()
    assert usage == RankUsage(
        measured_s=2,
        cpu_milli=750,
        cpu_high_milli=750,
        throttled_milli=300,
        io_wait_milli=250,
        read_mib=10,
        memory_mib=100,
    )


def test_usage_is_reported_when_it_changes_and_once_a_minute() -> None:
    books, told = NodeUsage(1, "A100"), list[tuple[int, RankMetered]]()
    books.begin(A, Place((0,), 1), 0.0)
    seconds = 0.0
    for second in range(1, 201):
        seconds += 1.0 if second <= 100 else 4.0
        books.read(second, {0: gpu(100.0 * second, 100.0)}, {A: cpu(seconds)})
        told += [(second, one) for one in books.news(second)]
    assert [second for second, _ in told] == [WINDOW_S, WINDOW_S + TOLD_EVERY_S, 110, 170]
    assert [one.usage.cpu_milli for _, one in told] == [1000, 1000, 4000, 4000]
    assert [one.usage.measured_s for _, one in told] == [10, 10, 10, 10]
    assert [one.energy_mj for _, one in told] == [900_000, 6_900_000, 10_900_000, 16_900_000]
    used = books.end(A, 200.0)
    assert used is not None
    assert used.usage().cpu_high_milli == 4000
    assert used.usage().cpu_milli == 2500


def test_reports_of_a_job_are_below_a_kilobyte_a_minute() -> None:
    """A frame with figures of full size for 16 ranks, six times a minute."""
    full = RankUsage(**dict.fromkeys(RankUsage.__struct_fields__, 99999))
    full = msgspec.structs.replace(full, energy_mj=10**7, gpu_memory_mib=143_771, memory_mib=2_000_000)
    ranks = [RankMetered(job=10**6 + at, attempt=3, rank=2, usage=full, energy_mj=10**12) for at in range(16)]
    frame = encode(Metered(ranks=ranks, power_w=5_600.3, day="2026-11-25", energy_day_j=4.8e8))
    assert decode(frame).message == Metered(
        ranks=ranks, power_w=5_600.3, day="2026-11-25", energy_day_j=4.8e8
    )
    assert 6 * len(frame) / 16 < 1000


# ---- across a restart of the daemon ---------------------------------------------------------------------


def test_next_daemon_continues_saved_usage() -> None:
    first = NodeUsage(1, "A100")
    first.begin(A, Place((0,), 1), 0.0)
    for second in range(11):
        first.read(second, {0: gpu(200.0 * second, 200.0)}, {A: cpu(float(second))})
    kept = msgspec.json.decode(msgspec.json.encode(first.usage_to_keep("boot", 10.0)[A]), type=Kept)
    assert (kept.cpu_s, kept.counters_j) == (10.0, {0: 2000.0})
    second_ = NodeUsage(1, "A100")
    second_.begin(A, Place((0,), 1), 30.0, kept, is_new=False)
    for second in range(30, 41):
        second_.read(second, {0: gpu(200.0 * second, 200.0)}, {A: cpu(float(second))})
    used = second_.end(A, 40.0)
    assert used is not None
    assert used.energy_j == pytest.approx(8000.0), "including the energy while no daemon ran"
    assert (used.usage().cpu_milli, used.usage().measured_s) == (1000, 40)


def test_rank_without_saved_usage_starts_at_the_first_reading() -> None:
    books = NodeUsage(0, "generic")
    books.begin(A, Place((), 1), 50.0, None, is_new=False)
    books.read(51.0, {}, {A: cpu(40.0)})
    books.read(52.0, {}, {A: cpu(41.5)})
    used = books.end(A, 52.0)
    assert used is not None
    assert used.usage().cpu_milli == 1500


def test_counter_reset_meanwhile_adds_nothing() -> None:
    kept = Kept("boot", 10.0, UsageSums(energy_j=70.0, measured_s=5.0), 1.0, 0, {0: 2000.0})
    books = NodeUsage(1, "A100")
    books.begin(A, Place((0,), 1), 30.0, kept, is_new=False)
    books.read(30.0, {0: gpu(5.0, 100.0)}, {A: cpu(2.0)})
    assert energy_j(books, A, 30.0) == pytest.approx(70.0)


# ---- checks of a node's report --------------------------------------------------------------------------


@pytest.mark.parametrize("nonsense", [-1, 1 << 53, 1 << 63])
def test_absurd_values_are_invalid(nonsense: int) -> None:
    assert RankUsage(gpu_milli=500).is_sound()
    assert not RankUsage(gpu_milli=nonsense).is_sound()
