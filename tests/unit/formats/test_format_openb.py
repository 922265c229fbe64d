"""openb's pod and node lists.

Columns and the meaning of `num_gpu`, `gpu_milli` and `gpu_spec` follow alibaba/clusterdata,
cluster-trace-gpu-v2023/README.md, commit 0c9677bb156ded9c63ca40d9aa54cd31d3e75061; blanks of pods that were
never scheduled its csv/openb_pod_list_default.csv, commit 50a91c7c74abe3b658188dc78ac1dd302970d40c.
"""

from __future__ import annotations

from tests.support.sim.samples import DAMAGED, WHOLE, convert, skipped

OPENB, DAMAGED_OPENB = WHOLE[3], DAMAGED[3]


def test_whole_shared_and_no_gpus() -> None:
    """`gpu_milli` is 1000 also for a pod with eight GPUs: it is per GPU, and matters only for one GPU."""
    trace = convert(OPENB).trace
    assert trace.num_gpus.tolist() == [1, 0.46, 0, 8, 1]
    assert trace.num_cpus.tolist() == [12, 6, 20, 88, 16]
    assert trace.extra["memory_mib"].tolist() == [16384, 12288, 65536, 327680, 32768]


def test_pod_runs_from_scheduling_to_deletion() -> None:
    trace = convert(OPENB).trace
    assert trace.submit_s.tolist() == [0, 426961, 2759574, 9437397, 9966958]
    assert trace.duration_s.tolist() == [12537396, 12475799, 10143284, 1332357, 1512]
    assert trace.extra["queue_s"].tolist() == [0, 100, 2, 0, 5]


def test_accepted_types_and_quality_of_service() -> None:
    trace = convert(OPENB).trace
    assert trace.gpu_type.tolist() == ["", "", "", "", "V100M16|V100M32"]
    assert trace.extra["x_qos"].tolist() == ["LS", "LS", "LS", "Burstable", "Guaranteed"]
    assert trace.status.tolist() == ["Running", "Running", "Running", "Succeeded", "Failed"]


def test_pending_pod_has_no_scheduling_time_and_never_ran() -> None:
    assert skipped(convert(OPENB).accounts[0]) == {"never scheduled": [7]}


def test_each_fault_has_its_name() -> None:
    conversion = convert(DAMAGED_OPENB, cluster_name="c")
    assert skipped(conversion.accounts[0]) == {
        "malformed: gpu_milli": [3],
        "shares of several GPUs": [4],
        "malformed: end before start": [5],
        "malformed: quotes": [6],
        "malformed: scheduled before created": [7],
        "malformed: job id": [8],
    }
    assert skipped(conversion.accounts[1]) == {"malformed: GPUs": [6]}


def test_nodes_with_and_without_gpus() -> None:
    conversion = convert(OPENB, cluster_name="openb")
    spec = conversion.cluster
    assert spec is not None
    assert [(one.count, one.gpus, one.gpu_type, one.cpus, one.memory_mib) for one in spec.nodes] == [
        (1, 0, "none", 32, 262144),
        (2, 8, "G2", 96, 393216),
        (1, 2, "T4", 104, 524288),
    ]
