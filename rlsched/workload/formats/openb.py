"""Alibaba openb (cluster-trace-gpu-v2023): `openb_pod_list_*.csv`, pods, and `openb_node_list_*.csv`, nodes.

Columns: alibaba/clusterdata, cluster-trace-gpu-v2023/README.md,
commit 0c9677bb156ded9c63ca40d9aa54cd31d3e75061.
"""

from __future__ import annotations

from rlsched.cluster.spec import ClusterSpec
from rlsched.workload.formats.account import Account, LeftOutError, MalformedError
from rlsched.workload.formats.frame import Conversion, JobFrame, Node, Request, node_gpus, nodes_to_cluster
from rlsched.workload.formats.lines import TextRow, read_csv
from rlsched.workload.formats.places import beside, title

REQUIRED = (
    *("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "qos", "pod_phase"),
    *("creation_time", "deletion_time", "scheduled_time"),
)
MAIN = ("openb_pod_list_*.csv",)
NODES = ("openb_node_list_all_node.csv", "openb_node_list_gpu_node.csv")
NONE = "nan"
"""The word for a missing GPU type according to the README; in the files, the cell is blank."""
_MILLI = 1000

LOST = (
    "quality of service: it is kept only as x_qos",
    "whether a pod ran on after the trace: the last second of the trace is its recorded end then",
    "there are no users, VCs or time limits, and where pods ran is not in the files",
    "the publisher's clock: second 0 is the first creation",
)


def convert(request: Request) -> Conversion:
    """Read a pod list.

    Raises:
        TraceError: the header lacks a required column, no job is left, or `request.strict` is true and a row
            is malformed.
    """
    account = Account(request.path, request.strict)
    jobs = JobFrame(("queue_s", "memory_mib", "x_qos"))

    def use(row: TextRow) -> None:
        created_s, deleted_s = row.need("creation_time"), row.number("deletion_time")
        scheduled_s = row.number("scheduled_time")
        if scheduled_s is None:
            raise LeftOutError("never scheduled")
        if deleted_s is None:
            raise LeftOutError("no end recorded")
        if scheduled_s < created_s:
            raise MalformedError(
                "scheduled before created",
                f"expected a scheduled_time of {created_s:.15g} s or later, got {scheduled_s:.15g} s",
            )
        jobs.add(
            job_id=row.word("name"),
            submit_s=created_s,
            duration_s=deleted_s - scheduled_s,
            num_gpus=_gpus(row),
            status=row.word("pod_phase"),
            gpu_type=row.word("gpu_spec", NONE),
            num_cpus=row.need("cpu_milli") / _MILLI,
            extra=(scheduled_s - created_s, row.number("memory_mib"), row.word("qos")),
        )

    account.read(read_csv(request.path, REQUIRED), use, TextRow.fields)
    trace, origin_s = jobs.trace(title(request.path), account)
    accounts, cluster = [account], None
    if request.cluster_name is not None:
        nodes, cluster = _cluster(request)
        accounts.append(nodes)
    return Conversion(trace, tuple(accounts), f"second {origin_s:g} of the publisher's clock", LOST, cluster)


def _gpus(row: TextRow) -> float:
    """Return the GPUs of a pod: `num_gpu`, or `gpu_milli` / 1000 if the pod uses a fraction of one GPU."""
    count, milli = row.need("num_gpu"), row.need("gpu_milli")
    if count == 0:
        return 0.0
    if not 0 < milli <= _MILLI:
        raise MalformedError("gpu_milli", f"'gpu_milli': expected 1 to {_MILLI}, got {milli:g}")
    if milli == _MILLI:
        return count
    if count > 1:
        raise LeftOutError("shares of several GPUs")
    return milli / _MILLI


def _cluster(request: Request) -> tuple[Account, ClusterSpec]:
    path = beside(request.path, NODES)
    account = Account(path, request.strict)
    nodes: list[Node] = []

    def use(row: TextRow) -> None:
        gpus = node_gpus(row.need("gpu"))
        model = row.word("model", NONE) or "none"
        if gpus and model == "none":
            raise MalformedError("model", "'model': expected the GPU model of the node, got a blank")
        nodes.append((gpus, model, int(row.need("cpu_milli")) // _MILLI, int(row.need("memory_mib")), None))

    account.read(read_csv(path, ("sn", "cpu_milli", "memory_mib", "gpu", "model")), use, TextRow.fields)
    return account, nodes_to_cluster(request.cluster_name or "", nodes, path)
