"""Distance of the best plans from the optimum: small instances, searched exhaustively.

    .venv/bin/python -m studies.policy.small_optimum --instances 500 --out runs/small

Instances have three to six jobs, with and without preemption, with energy at a weight of 0 or 0.3. All jobs
come at once, or within ten minutes: the optimum knows later jobs in advance, and no plan does. The optimum
is searched by branch and bound (`small_search`) and played by the engine. Plans come from `tuned` with
true run times, at the best prices for each instance, and at the prices that are best on the other half of the
instances (`small_plans`).

If the best plans have less than 0.97 of the optimum, the search is repeated without one ability after
another. If the plans reach 0.97 of the rest, they lack only that ability.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from rlsched.signals import exit_with_parent
from rlsched_agents.dials.judging import interval
from studies.policy.options import reported
from studies.policy.small_instances import Instance, instance, played, tables_of
from studies.policy.small_plans import costs_at, points, settings_at
from studies.policy.small_search import Allowed, search

NEAR: Final = 0.97
"""Target of plans, as a fraction of the optimum."""
MOST_BRANCHES: Final = 5_000_000
AGREES: Final = 1e-9
"""Search and engine count the same cost up to rounding."""
WITHIN_S: Final = (0.0, 600.0)
"""Seconds within which jobs arrive. With 0, plans and the optimum have the same information; else only the
optimum knows future arrivals."""
KINDS: Final = tuple(
    (jobs, weight, preempts, within_s)
    for weight, preempts, sizes in (
        (0.0, False, (3, 4, 5, 6)),
        (0.0, True, (3, 4, 5, 6)),
        (0.3, False, (3, 4, 5, 6)),
        (0.3, True, (3, 4)),
    )
    for jobs in sizes
    for within_s in WITHIN_S
)
"""(jobs, weight of energy, preemption, seconds within which they come), in rotation."""
WITHOUT: Final = ("waiting for other GPUs", "preemption", "sharing by more than two", "sharing", "clocks")


class Row(msgspec.Struct, frozen=True):
    """Result of an instance.

    Attributes:
        number: Number of the instance.
        jobs, energy_weight, preempts, within_s: Kind of the instance, see `KINDS`.
        least: Cost of the optimum, or the least cost found; never more than the cost of the best plans.
        proven: Whether the search finished.
        prices: Cost at each of the points that every instance tries, as shipped first.
        best: Cost at the best prices.
        without: The least cost without each of `WITHOUT`; empty if plans are near.
    """

    number: int
    jobs: int
    energy_weight: float
    preempts: bool
    within_s: float
    least: float
    proven: bool
    prices: list[float]
    best: float
    without: list[float]


class _Task(NamedTuple):
    seed: int
    number: int
    most_branches: int


def solved(task: _Task) -> Row:
    """Draw an instance, search it and price its plans."""
    jobs, weight, preempts, within_s = KINDS[task.number % len(KINDS)]
    rng = np.random.default_rng([task.seed, task.number])
    one = instance(jobs, rng, energy_weight=weight, preempts=preempts, within_s=within_s)
    return row_of(one, task.number, task.most_branches)


def row_of(one: Instance, number: int = 0, most_branches: int = MOST_BRANCHES) -> Row:
    """Result of an instance.

    Raises:
        RuntimeError: the engine computes another cost than the search.
    """
    tables = tables_of(one)
    costs, best = costs_at(one, tables)
    allowed = Allowed(one.preempts, clocks=4 if one.energy_weight > 0.0 else 1)
    least, steps = best, []
    first = (allowed._replace(preempts=False, clocks=1), allowed._replace(preempts=False), allowed)
    for each in dict.fromkeys(first):  # results with fewer abilities bound the searches with more
        found = search(tables, each, at_most=least, most_branches=most_branches)
        if found.steps:
            least, steps = found.cost, found.steps
    if steps:
        truly = played(one, steps, tables)
        if abs(truly / least - 1.0) > AGREES:
            raise RuntimeError(f"instance {number}: searched cost {least!r}, the engine's is {truly!r}")
    without = []
    if found.proven and least / best < NEAR:
        for each in _less(allowed):
            less = search(tables, each, at_most=best, most_branches=most_branches)
            without.append(min(less.cost, best) if less.proven else float("nan"))
    return Row(
        number,
        len(one.trace),
        one.energy_weight,
        one.preempts,
        WITHIN_S[int(one.trace.submit_s.max() > 0.0)],
        least,
        found.proven,
        costs.tolist(),
        best,
        without,
    )


def _less(allowed: Allowed) -> tuple[Allowed, ...]:
    """Return, for each ability in `WITHOUT`, the permitted abilities without it."""
    return (
        allowed._replace(idles=False),
        allowed._replace(preempts=False),
        allowed._replace(tenants=2),
        allowed._replace(tenants=1),
        allowed._replace(clocks=1),
    )


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line, search, print; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="small_optimum", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--instances", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most-branches", type=int, default=MOST_BRANCHES)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument(
        "--out", type=Path, default=None, help="directory: existing results are not searched again"
    )
    return reported(_small_optimum, parser.parse_args(words))


def _small_optimum(arguments: argparse.Namespace) -> int:
    rows = sorted(_rows(arguments), key=lambda row: row.number)
    for line in tables_in_words(rows):
        print(line)
    return 0


def _rows(arguments: argparse.Namespace) -> Iterator[Row]:
    """The instances, results of an earlier call first."""
    path = None if arguments.out is None else arguments.out / f"seed-{arguments.seed}.jsonl"
    known = list[Row]()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_bytes().splitlines() if path.exists() else []
        known = [row for row in (_row(line) for line in lines) if row.number < arguments.instances]
    yield from known
    had, began = {row.number for row in known}, time.monotonic()
    tasks = [
        _Task(arguments.seed, k, arguments.most_branches) for k in range(arguments.instances) if k not in had
    ]
    with ProcessPoolExecutor(arguments.workers, initializer=exit_with_parent) as pool:
        for done, row in enumerate(pool.map(solved, tasks), 1):
            if path is not None:
                with path.open("ab") as file:
                    file.write(msgspec.json.encode(row) + b"\n")
            if done % 20 == 0:
                took_s = time.monotonic() - began
                print(f"{done} of {len(tasks)}, {took_s:.0f} s", file=sys.stderr, flush=True)
            yield row


def _row(line: bytes) -> Row:
    found = json.loads(line)
    found["without"] = [float("nan") if one is None else one for one in found["without"]]
    return msgspec.convert(found, Row)


def tables_in_words(rows: Sequence[Row]) -> list[str]:
    """The two tables."""
    one_for_all, chosen = _prices_of_the_other_half(rows)
    lines = [
        "| jobs come | weight of energy | preemption | instances | not finished | as shipped "
        f"| one price for all | best prices | at {NEAR:g} and more | optimal |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    proven = np.array([row.proven for row in rows])
    least = np.array([row.least for row in rows])
    shipped, best = np.array([row.prices[0] for row in rows]), np.array([row.best for row in rows])
    groups = [str(row.number) for row in rows]
    for name, which in _parts(rows):
        kept = which & proven
        if not kept.any():
            continue
        mine = [group for group, is_kept in zip(groups, kept, strict=True) if is_kept]
        means = [
            str(interval(np.log(least[kept] / cost[kept]), mine)) for cost in (shipped, one_for_all, best)
        ]
        near, optimal = (least[kept] / best[kept] >= NEAR).mean(), (least[kept] / best[kept] > 0.9999).mean()
        lines.append(
            f"| {name} | {kept.sum()} | {(which & ~proven).sum()} | {' | '.join(means)} | {near:.0%} | "
            f"{optimal:.0%} |"
        )
    upper = least / best
    lines += ["", f"With the results of unfinished searches: {upper.mean():.3f}.", ""]
    lines += [f"One price for all: {', '.join(settings_at(points()[k])) or 'as shipped'}." for k in chosen]
    for name, within_s in zip(("at once", "in ten minutes"), WITHIN_S, strict=True):
        short = [row for row in rows if row.without and row.within_s == within_s]
        lines += ["", f"Instances with plans below {NEAR:g}, jobs that come {name}:", "", *_causes(short)]
    return lines


def _prices_of_the_other_half(rows: Sequence[Row]) -> tuple[np.ndarray, list[int]]:
    """Return the (n,) costs of the instances at one point of prices for each half, and both points.

    The point of a half is the best one on the instances of the other half.
    """
    prices, least = np.array([row.prices for row in rows]), np.array([row.least for row in rows])
    half = np.array([row.number // len(KINDS) % 2 for row in rows])
    out, chosen = prices[:, 0].copy(), list[int]()
    for mine in (0, 1):
        others = half != mine
        if others.any():
            chosen.append(int(np.log(prices[others] / least[others, None]).mean(axis=0).argmin()))
            out[half == mine] = prices[half == mine, chosen[-1]]
    return out, chosen


def _parts(rows: Sequence[Row]) -> Iterator[tuple[str, np.ndarray]]:
    at_once = np.array([row.within_s == 0.0 for row in rows])
    for weight, preempts in dict.fromkeys((weight, preempts) for _, weight, preempts, _ in KINDS):
        is_kind = np.array([(row.energy_weight, row.preempts) == (weight, preempts) for row in rows])
        for name, come in (("at once", at_once), ("in ten minutes", ~at_once)):
            yield f"{name} | {weight:g} | {'yes' if preempts else 'no'}", is_kind & come
    yield "at once | all | all", at_once
    yield "in ten minutes | all | all", ~at_once
    yield "all | all | all", np.ones(len(rows), bool)


def _causes(rows: Sequence[Row]) -> list[str]:
    """Return table lines: the value of each ability to the optimum, for instances with plans below `NEAR`."""
    lines = [
        f"| without | instances | cost over the optimum | plans at {NEAR:g} of the rest |",
        "|---|---:|---:|---:|",
    ]
    for k, name in enumerate(WITHOUT):
        asked = [
            row
            for row in rows
            if not np.isnan(row.without[k])
            and (row.preempts or name != "preemption")
            and (row.energy_weight > 0.0 or name != "clocks")
        ]
        if asked:
            worth = np.array([row.without[k] / row.least for row in asked])
            near = np.array([row.without[k] / row.best >= NEAR for row in asked])
            lines.append(f"| {name} | {len(asked)} | {worth.mean():.3f} | {near.mean():.0%} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
