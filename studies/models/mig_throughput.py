"""Seven MIG slices of an A100 against the whole GPU, in the simulator: small jobs, large ones, a mix.

    .venv/bin/python -m studies.models.mig_throughput        # half a minute with everything compiled; --json

Eight A100-40GB, whole or all cut alike, process one long queue of jobs of one GPU, first come first served.
Only jobs that fit a 1g.5gb slice take part, so that all layouts do the same work. Throughput is work per
second, energy that of the whole cluster for a job, both relative to whole GPUs with one job each.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass

import numpy as np

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.policies.policy import Policy
from rlsched.models.catalogue import load_catalogue
from rlsched.models.memory import MARGIN_FRAC
from rlsched.models.mig import MEASURED_AS, PROFILES
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.modelling import Models

GPUS, GPU_TYPE = 8, "A100-40GB"
RUN_S = 1000.0
LAYOUTS = {"2 x 3g": ("3g.20gb",) * 2, "3 x 2g": ("2g.10gb",) * 3, "7 x 1g": ("1g.5gb",) * 7}
SMALL_FRAC, LARGE_FRAC = 1 / 3, 2 / 3
"""Solo utilisation of an A100 below which a job is small here, and above which it is large."""


@dataclass(frozen=True)
class Found:
    """One kind of jobs: its number of workloads, and the result of each layout.

    Attributes:
        jobs: Description of the jobs.
        fit: Workloads (of a draw: jobs) that fit 1g.5gb and take part, of all of them.
        throughput: By layout, relative to whole GPUs.
        energy: Energy of the cluster per job by layout, relative to whole GPUs.
        assumed: Throughput with the assumed figures 30 % lower and 30 % higher.
    """

    jobs: str
    fit: str
    throughput: dict[str, float]
    energy: dict[str, float]
    assumed: dict[str, tuple[float, float]]


def kinds_of_jobs(count: int) -> dict[str, Trace]:
    """Traces to run: the measured workloads, small and large ones of the catalogue, and a draw."""
    catalogue = load_catalogue()
    util = {name: catalogue.cells[name, "A100", "util_frac"].value for name in catalogue.names}
    of_class = {
        "small: at most a third of an A100": [name for name in util if util[name] <= SMALL_FRAC],
        "in between": [name for name in util if SMALL_FRAC < util[name] < LARGE_FRAC],
        "large: at least two thirds": [name for name in util if util[name] >= LARGE_FRAC],
    }
    traces = {name: queue(count, [name]) for name in MEASURED_AS}
    traces |= {kind: queue(count, names) for kind, names in of_class.items()}
    traces["as drawn for jobs of one GPU"] = queue(count, [""])
    return traces


def queue(count: int, workloads: list[str]) -> Trace:
    """Jobs of these workloads in turn ("": drawn), all submitted at once, each with its own user."""
    return Trace.from_columns(
        name="queue",
        submit_s=np.zeros(count),
        duration_s=np.full(count, RUN_S),
        num_gpus=np.ones(count),
        user=[f"u{k}" for k in range(count)],
        extra={"workload": [workloads[k % len(workloads)] for k in range(count)]},
    )


def that_fit(trace: Trace, scale: float = 1.0) -> Trace:
    """The jobs that the smallest slice holds, with assumed figures multiplied by this."""
    catalogue = load_catalogue(assumed_scale=scale)
    memory_mib = catalogue.traits([GPU_TYPE]).memory_mib[catalogue.draw(trace, 0), 0]
    return trace.select(memory_mib <= (1 - MARGIN_FRAC) * PROFILES[GPU_TYPE][0].memory_mib)


def work_off(trace: Trace, mig: tuple[str, ...], scale: float, *, share: bool = False) -> tuple[float, float]:
    """(work a second, energy of the cluster for each job in J) of a layout; no `mig`: whole GPUs,
    with two jobs each if they share."""
    group = NodeGroup(gpus=GPUS, gpu_type=GPU_TYPE)
    if mig:
        group = NodeGroup.sliced(mig, gpus=GPUS, gpu_type=GPU_TYPE)
    rule = Policy("fifo-backfill", share={} if share else None).rule
    engine = Engine(
        trace,
        ClusterSpec(name="c", nodes=(group,)),
        order=rule.order,
        oracle=True,
        models=Models(assumed_scale=scale),
    )
    table = engine.run_rule(rule)
    assert table.energy is not None
    assert not table.rejected.any()
    return float(trace.duration_s.sum() / table.end_s.max()), table.energy.cluster_j / len(trace)


def measure(kind: str, trace: Trace) -> Found:
    """All layouts, and two jobs on a GPU by time slicing if both keep .85 of their speed."""
    some, names = that_fit(trace), set(trace.extra["workload"].tolist())
    fit = f"{len(some) / len(trace):.0%} of jobs"
    if names != {""}:
        fit = f"{len(set(some.extra['workload'].tolist()))} of {len(names)}"
    shared = "two a GPU, shared"
    ways: dict[str, tuple[str, ...]] = {shared: (), **LAYOUTS}
    throughput, energy, assumed = {}, {}, {}
    for name, mig in ways.items():
        got = []
        for scale in (1.0, 0.7, 1.3):
            held = that_fit(trace, scale)
            ours = work_off(held, mig, scale, share=name == shared)
            theirs = work_off(held, (), scale)
            got.append(ours[0] / theirs[0])
            if scale == 1.0:
                energy[name] = ours[1] / theirs[1]
        throughput[name], assumed[name] = got[0], (got[1], got[2])
    return Found(kind, fit, throughput, energy, assumed)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=5600, help="in each queue")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = [measure(kind, trace) for kind, trace in kinds_of_jobs(options.jobs).items()]
    if options.json:
        print(json.dumps([vars(one) for one in found], indent=1))
        return
    ways = list(found[0].throughput)
    head = ["workloads", "fit 1g.5gb", *ways, "7 x 1g, assumed -30 / +30 %", "energy a job, 7 x 1g"]
    print(f"| {' | '.join(head)} |")
    print("|---" * len(head) + "|")
    for one in found:
        cells = [one.jobs, one.fit, *(f"{one.throughput[way]:.2f}" for way in ways)]
        cells += ["{:.2f} / {:.2f}".format(*one.assumed["7 x 1g"]), f"{one.energy['7 x 1g']:.2f}"]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
