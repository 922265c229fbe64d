"""Value of dials: static settings, an evolution strategy and PPO, on held-out windows.

    .venv/bin/python -m studies.policy.dials static             # experiment 1: settings of the gate
    .venv/bin/python -m studies.policy.dials static --part train    # the same on the selecting windows
    .venv/bin/python -m studies.policy.dials linear --seed 1    # experiment 2: an evolution strategy
    .venv/bin/python -m studies.policy.dials ppo --seed 1       # experiment 3: PPO on the same dials

Training windows are cut from the training parts of four clusters, judging windows from the validation parts
of these and of others. Intervals are bootstrap over stretches of the traces. Tables are kept in OUT.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.dials.strategy import Strategy
from rlsched.decide.policies.policy import Policy
from rlsched.workload.split import time_split
from rlsched_agents.dials.evolution import Evolution, EvolutionConfig
from rlsched_agents.dials.judging import ALL_ZERO, Floats, Judge, Layers
from rlsched_agents.dials.lesson import PpoConfig
from rlsched_agents.dials.ppo import DialPpo
from rlsched_agents.dials.verdict import StrategyComparison, compared
from rlsched_envs.training.sources import Drawn, EpisodeSource
from rlsched_envs.training.windows import Windows, draw_setting
from studies.policy.cases import TRACES, read_trace
from studies.policy.options import add_common, reported

UNSEEN: Final = ("ms_itp_02", "ms_itp_05", "ms_itp_08", "ms_itp_09")
"""Clusters without training windows."""
SCALES: Final = (0.7, 1.0, 1.3)
"""Factors on the assumed figures of the catalogue of workloads."""
POLICY: Final = Policy("tuned")
DRAWN: Final = Drawn()
FOUR: Final = {"when": "better", "max_jobs": 4, "min_speed": 0.5, "by_hold": 5.0}
BLOCKED: Final = {**FOUR, "when": "blocked", "min_gain": 0.15}
"""Sharing only if no GPUs are free."""
OTHERS: Final[dict[str, dict[str, Any]]] = {
    "2 tenants, speed 0.85": {"share": {}},
    "2 tenants, speed 0.5 (shipped before)": {"share": {"min_speed": 0.5}},
    "4 tenants, speed 0.6": {"share": {**FOUR, "min_speed": 0.6}},
    "4 tenants, speed 0.7": {"share": {**FOUR, "min_speed": 0.7}},
    "4 tenants, gain 0.3, speed 0.6": {"share": {**FOUR, "min_speed": 0.6, "min_gain": 0.3}},
    "no price of large gangs": {"share": {**FOUR, "min_gain": 0.15, "by_hold": 0.0}},
    "4 tenants, gain 0.3": {"share": {**FOUR, "min_gain": 0.3}},
    "4 tenants, gain 0.4": {"share": {**FOUR, "min_gain": 0.4}},
    "4 tenants, gain 0.3, of a third 0.5": {"share": {**FOUR, "min_gain": 0.3, "min_gain_more": 0.5}},
    "seven numbers of the prototype": {
        "share": {
            **FOUR, "min_speed": 0.59, "min_gain": 0.27, "min_gain_more": 0.44, "by_queue": -0.1,
            "by_length": 0.16, "by_left": 0.07, "by_slowest": 0.73,
        }
    },
    "any GPU type": {"types": None},
    "fastest first": {"types": {"price": 0.0}, "share": BLOCKED},
    "fastest first, plans compared": {"types": {"price": 0.0, "later": 2.0}},
    "types one after another": {"types": {"price": 0.3}, "share": BLOCKED},
    "types one after another, gain 0.3": {"types": {"price": 0.3}, "share": {**BLOCKED, "min_gain": 0.3}},
    "types, no job waits": {"types": {"price": 0.3}},
    "types, price 0.5": {"types": {"price": 0.5, "later": 2.0}},
    "comparative advantage (price 1)": {"types": {"price": 1.0}, "share": BLOCKED},
    "comparative advantage, plans compared": {"types": {"price": 1.0, "later": 2.0}},
}  # fmt: skip
"""Settings that are compared with `tuned`, each replacing its table."""
FOLLOWING: Final = EvolutionConfig(
    generations=24,
    columns=(
        "waiting_per_gpu", "waiting_hours", "waiting_must_stay", "free", "sharing", "ends_in_1_h",
        "load_1_d", "prediction_corr", "energy_weight", "preempts",
    ),
    dials=("gate_pair", "gate_more", "by_length", "margin", "must_stay", "type_price"),
)  # fmt: skip


def source(folder: Path, name: str, part: str) -> EpisodeSource:
    """The jobs of a part of a cluster: `TRACE`, or `TRACE/VC`."""
    trace, spec = read_trace(folder, name)
    since_s, until_s = getattr(time_split(trace), part)
    vc = name.partition("/")[2]
    if vc:
        trace = trace.select(trace.vc == vc)
        spec = ClusterSpec(name=name, nodes=tuple(group for group in spec.nodes if group.vc == vc))
    return replace(EpisodeSource.from_trace(trace, spec, since_s=since_s, until_s=until_s), name=name)


def windows(sources: Sequence[EpisodeSource], each: int, seed: int, mixed_frac: float) -> tuple[Windows, ...]:
    """Return `each` windows of each source, distributed over the scales of the assumed figures.

    `mixed_frac`: share of them on clusters of several GPU types.
    """
    rng, drawn = np.random.default_rng(seed), msgspec.structs.replace(DRAWN, mixed_frac=mixed_frac)
    settings = [draw_setting(one, drawn, rng) for one in sources for _ in range(each)]
    return tuple(
        Windows(settings[k :: len(SCALES)], sources, drawn, POLICY, assumed_scale=scale)
        for k, scale in enumerate(SCALES)
    )


def row(label: str, found: StrategyComparison) -> str:
    """A line of a table."""
    worst = max(found.by_source.items(), key=lambda one: one[1])
    return (
        f"| {label} | {found.cost} | {found.delay} | {found.energy} | {found.cost.better_frac:.0%} | "
        f"{worst[0]} {worst[1]:.3f} |"
    )


HEAD: Final = "| | cost | delay | energy | better in | worst cluster, cost |\n|---|---:|---:|---:|---:|---|"


def other(label: str) -> Policy:
    """Return `tuned` with some TOML tables replaced by the tables of a label in `OTHERS`."""
    return POLICY.with_settings(**dict.fromkeys(OTHERS[label])).with_settings(**OTHERS[label])


def static(pools: Sequence[Windows]) -> list[str]:
    """Return a table line for each setting in `OTHERS`, relative to `tuned`."""
    judge = Judge(pools)
    rows = []
    try:
        (base,) = judge.run([ALL_ZERO])
        for label in OTHERS:
            (found,) = judge.run([ALL_ZERO], policy=other(label))
            rows.append(row(label, compared(judge, found, base)))
            print(rows[-1], flush=True)
    finally:
        judge.close()
    return rows


def linear(teaching: Sequence[Windows], seed: int) -> Floats:
    """Result of an evolution strategy, started with all dials at 0."""
    judge = Judge(teaching)
    try:
        evolution, began = Evolution(judge, FOLLOWING, seed), time.monotonic()
        for _ in range(FOLLOWING.generations):
            one = evolution.step()
            print(
                f"{one.number} of {FOLLOWING.generations}: cost {one.cost:.4f}, signal to noise "
                f"{one.signal:.2f}, {time.monotonic() - began:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    finally:
        judge.close()
    return evolution.result


def by_ppo(sources: Sequence[EpisodeSource], seed: int, rollouts: int, mixed_frac: float) -> Layers:
    """Result of PPO, started with all dials at 0."""
    drawn = msgspec.structs.replace(DRAWN, mixed_frac=mixed_frac)
    ppo = DialPpo(sources, drawn, POLICY, PpoConfig(rollouts=rollouts), seed, ALL_ZERO[0])
    began = time.monotonic()
    for _ in range(rollouts):
        one = ppo.step()
        print(
            f"{one.number} of {rollouts}: cost {one.cost:.4f} with noise, KL divergence "
            f"{one.figures['approx_kl']:.3f}, {time.monotonic() - began:.0f} s",
            file=sys.stderr,
            flush=True,
        )
    return ppo.result


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line, train, judge, print; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="dials", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("static", "linear", "ppo"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--each", type=int, default=90, help="training windows of each cluster")
    parser.add_argument("--judged", type=int, default=50, help="judging windows of each cluster")
    parser.add_argument(
        "--mixed", type=float, default=0.5, help="share of windows on clusters of several types"
    )
    parser.add_argument("--rollouts", type=int, default=40, help="rollouts of PPO")
    parser.add_argument(
        "--part",
        choices=("train", "validation"),
        default="validation",
        help="static: source of the windows; `train` leaves out the clusters without training windows",
    )
    add_common(parser, out=Path("runs/dials"))
    return reported(_dials, parser.parse_args(words))


def _dials(arguments: argparse.Namespace) -> int:
    folder, out = arguments.traces, arguments.out
    out.mkdir(parents=True, exist_ok=True)
    part = arguments.part if arguments.what == "static" else "validation"
    names = TRACES if part == "train" else (*TRACES, *UNSEEN)
    fresh = windows([source(folder, name, part) for name in names], arguments.judged, 77, arguments.mixed)
    if arguments.what == "static":
        print(HEAD, flush=True)
        (out / f"static-{part}-{arguments.mixed:g}.md").write_text(
            "\n".join([HEAD, *static(fresh)]) + "\n", encoding="utf-8"
        )
        return 0
    teachers, label = [source(folder, name, "train") for name in TRACES], f"{arguments.what}-{arguments.seed}"
    layers: Layers
    if arguments.what == "linear":
        layers = [linear(windows(teachers, arguments.each, arguments.seed, arguments.mixed), arguments.seed)]
    else:
        layers = by_ppo(teachers, arguments.seed, arguments.rollouts, arguments.mixed)
    Strategy.from_layers(*layers).write(out / f"{label}.json")
    judge = Judge(fresh)
    try:
        line = row(label, compared(judge, *judge.run([layers, ALL_ZERO])))
    finally:
        judge.close()
    (out / f"{label}.md").write_text(f"{HEAD}\n{line}\n", encoding="utf-8")
    print(f"{HEAD}\n{line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
