"""Acme's job traces of Seren and Kalos.

Headers, states and the examples follow InternLM/AcmeTrace, README.md, commit
6d6ac9cd15f3b01151ac6ba00ecddd9156f0dc73.
"""

from __future__ import annotations

from tests.support.sim.samples import WHOLE, convert, noted, skipped

KALOS, SEREN = WHOLE[4], WHOLE[5]


def test_seren_as_published() -> None:
    conversion = convert(SEREN)
    trace = conversion.trace
    assert trace.duration_s.tolist() == [117, 2693, 3600]
    assert trace.num_gpus.tolist() == [8, 16, 0]
    assert trace.num_cpus.tolist() == [128, 256, 4]
    assert trace.extra["x_workload"].tolist() == ["Other", "SFT", "Other"]
    assert trace.extra["queue_s"].tolist() == [32, 13, 0]
    assert trace.extra["x_num_nodes"].tolist() == ["1", "2", "1"]
    assert noted(conversion.accounts[0]) == {}


def test_times_count_with_their_offsets() -> None:
    """00:23:58+08:00 is 16:23:58 UTC of the day before, 6:02 minutes before 16:30:00+00:00."""
    conversion = convert(SEREN)
    assert conversion.trace.submit_s.tolist() == [0, 336, 698]
    assert conversion.origin == "2023-02-28 16:18:22 UTC"


def test_kalos_includes_waiting_in_the_column_duration() -> None:
    """The published examples give 18 and 82 s; they ran for 8 and 70 s, after waiting for 10 and 12 s."""
    conversion = convert(KALOS)
    assert conversion.trace.duration_s.tolist() == [8, 70, 60]
    assert conversion.trace.extra["queue_s"].tolist() == [10, 12, 0]
    assert noted(conversion.accounts[0]) == {"the column duration is not end - start, which is used": [2, 3]}


def test_memory_of_all_pods_and_a_job_that_never_started() -> None:
    conversion = convert(KALOS)
    memory_mib = conversion.trace.extra["memory_mib"].tolist()
    assert memory_mib[:2] == [8 * 1000 * 1024] * 2
    assert memory_mib[2] != memory_mib[2]
    assert skipped(conversion.accounts[0]) == {"never started": [5]}
