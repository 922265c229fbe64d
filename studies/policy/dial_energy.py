"""Value of a dial of the price of GPU time: energy at equal time, at nine weights of energy.

    .venv/bin/python -m studies.policy.dial_energy             # experiment 6 of the study of learning

At each weight W the rule `tuned` weighs a job's time against its energy, and time counts more if jobs
wait: an analytic price. The dial `gpu_price` scales that. Each of its positions has a frontier of (time,
energy) over the weights; the table gives its energy at the time of the undialled rule.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS
from rlsched.decide.dials.turning import RANGES
from rlsched_agents.dials.judging import ALL_ZERO, Costs, Floats, Judge, Layers
from rlsched_envs.training.windows import Windows, draw_setting
from studies.policy.cases import TRACES
from studies.policy.dials import DRAWN, POLICY, UNSEEN, source
from studies.policy.options import add_common, reported

WEIGHTS: Final = tuple(round(0.1 * step, 1) for step in range(1, 10))
POSITIONS: Final = (-1.0, -0.5, 0.5, 1.0)
"""Positions of the dial, in ln(price)."""
SAVED: Final = 0.98
"""Maximum relative energy at equal time that counts as a gain."""


def constant(position: float) -> Layers:
    """The strategy that keeps the price of GPU time at one position."""
    weights = np.zeros((NUM_DIALS, NUM_COLUMNS + 1))
    name = "gpu_price"
    weights[list(RANGES).index(name), -1] = np.arctanh(position / RANGES[name])
    return (weights,)


def frontier(costs: Sequence[Costs], none: Costs) -> Floats:
    """Return (W, 2): ln(time in the system) and ln(energy), each relative to the run at full clocks.

    Both are means over the windows.
    """
    time = [np.log((one.delay_s + one.work_s) / (none.delay_s + none.work_s)).mean() for one in costs]
    energy = [np.log(one.energy_j / none.energy_j).mean() for one in costs]
    return np.stack([time, energy], axis=1)


def energy_at(time_log: Floats, other: Floats) -> Floats:
    """(n,) ln(energy) of a frontier at these times; nan outside its range."""
    order = np.argsort(other[:, 0])
    return np.interp(time_log, other[order, 0], other[order, 1], left=np.nan, right=np.nan)


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line, run, print; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="dial_energy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--each", type=int, default=25, help="windows of each cluster")
    add_common(parser, out=Path("runs/dials"))
    return reported(_dial_energy, parser.parse_args(words))


def _dial_energy(arguments: argparse.Namespace) -> int:
    sources = [source(arguments.traces, name, "validation") for name in (*TRACES, *UNSEEN)]
    rng = np.random.default_rng(61)
    drawn = [draw_setting(one, DRAWN, rng) for one in sources for _ in range(arguments.each)]
    found: dict[float, list[Costs]] = {position: [] for position in (0.0, *POSITIONS)}
    none = None
    for weight in (0.0, *WEIGHTS):
        settings = [msgspec.structs.replace(one, energy_weight=weight) for one in drawn]
        judge = Judge((Windows(settings, sources, DRAWN, POLICY),), workers=arguments.workers)
        try:
            if none is None:
                (none,) = judge.run([ALL_ZERO])
                continue
            for position, costs in found.items():
                costs.extend(judge.run([constant(position)]))
        finally:
            judge.close()
        print(f"weight {weight:g} of {WEIGHTS[-1]:g}", file=sys.stderr, flush=True)
    assert none is not None
    plain = frontier(found[0.0], none)
    rows = [
        "| ln(price of GPU time) | " + " | ".join(f"W {weight:g}" for weight in WEIGHTS) + " | gain, loss |",
        "|---|" + "---:|" * (len(WEIGHTS) + 1),
        "| 0: time over full clocks | " + " | ".join(f"{np.exp(one):.3f}" for one in plain[:, 0]) + " | |",
        "| 0: energy over full clocks | " + " | ".join(f"{np.exp(one):.3f}" for one in plain[:, 1]) + " | |",
    ]
    for position in POSITIONS:
        ratio = np.exp(energy_at(plain[:, 0], frontier(found[position], none)) - plain[:, 1])
        gains, losses = np.nansum(ratio <= SAVED), np.nansum(ratio > 1.0)
        cells = " | ".join("-" if np.isnan(one) else f"{one:.3f}" for one in ratio)
        rows.append(f"| {position:+g}: energy at equal time over position 0 | {cells} | {gains}, {losses} |")
    print("\n".join(rows))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "energy.md").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
