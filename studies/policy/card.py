"""Write the test-split results of a checkpoint into its card, from existing results.

    .venv/bin/python -m studies.policy.card checkpoints/default

Nothing is run: `compare --split test` and `bar --split test` come first. Means over the cases of loads 0.85,
0.95 and 1.05; the weights stay unchanged, to the byte.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError
from rlsched_agents.runtime.checkpoint import load_checkpoint, save_checkpoint
from studies.policy.bar_studies import HEADLINE_LOADS, STUDIES
from studies.policy.bar_tables import value_of
from studies.policy.cases import TRACES, Case, cases
from studies.policy.compare import read_results
from studies.policy.opponents import REFERENCES
from studies.policy.options import reported
from studies.policy.runs import Job, Result
from studies.policy.tables import best_reference, of_ratios

TEST: Final = "test"
MEASURED: Final = ("good", "unseen", "preempt100", "preempt50", "unseen100", "unseen50")
"""Studies with the policy under test as a row."""

Value = Callable[[Result], float | None]


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line, write the card; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="card", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, help="folder of the checkpoint")
    parser.add_argument("--out", type=Path, default=Path("runs/policy"), help="folder of the results")
    return reported(_card, parser.parse_args(words))


def _card(arguments: argparse.Namespace) -> int:
    checkpoint = load_checkpoint(arguments.checkpoint)
    policy = Policy.of(f"ppo:{arguments.checkpoint}")
    test = {name: row for name, row in _rows(arguments.out, policy) if row}
    if not test:
        raise InputError(
            f"{arguments.out}: no results of {policy.name} on the test split; expected output of "
            "`compare --split test` and `bar --split test`"
        )
    card = msgspec.structs.replace(checkpoint.card, test=test)
    written = save_checkpoint(arguments.checkpoint, card, checkpoint.weights)
    print(
        f"{arguments.checkpoint}: {len(test)} rows of the test split; weights {written.weights_sha256[:12]}"
    )
    return 0


def _rows(out: Path, policy: Policy) -> Iterator[tuple[str, dict[str, float]]]:
    """Each row of the card: its title, and its figures; no figures if results are missing."""
    alone = cases(TRACES, [TEST], HEADLINE_LOADS)
    yield "exclusive GPUs, mean queueing", row_of(alone, out / TEST, policy, _queueing)
    for name in MEASURED:
        study = STUDIES[name]
        todo = study.cases(study.traces((), TRACES), TEST, HEADLINE_LOADS)
        what = "JCT" if study.measure == "jct" else "delay"
        row = row_of(todo, out / "bar" / TEST, policy, partial(value_of, study))
        yield f"{study.title[0].lower()}{study.title[1:]}, mean {what}", row


def _queueing(one: Result) -> float | None:
    return one.metrics.queue_mean_s


def row_of(todo: Sequence[Case], folder: Path, policy: Policy, value: Value) -> dict[str, float]:
    """One row: the policy over the better of both references, case by case; empty if a result is missing.

    Args:
        todo: The cases.
        folder: Folder of their results.
        policy: The policy under test.
        value: The compared value, s.
    """
    jobs = [Job(case=case, policy=one) for case in todo for one in (*map(Policy, REFERENCES), policy)]
    results = read_results(jobs, folder)
    if len(results) < len(jobs):
        return {}
    best = [best_reference(results, case, models=False) for case in todo]
    ours = [value(results[case.name, policy.name, False]) for case in todo]
    theirs = [None if one is None else value(one) for one in best]
    ratios = [one / other for one, other in zip(ours, theirs, strict=True) if one and other]
    found = of_ratios(ours, theirs)
    if found is None:
        return {}
    row = {"ratio_frac": found.ratio, "worst_frac": max(ratios), "cases_count": float(len(ratios))}
    row |= {"better_count": float(sum(ratio < 1 for ratio in ratios))}
    if found.low is not None and found.high is not None:
        row |= {"low_frac": found.low, "high_frac": found.high}
    return row


if __name__ == "__main__":
    sys.exit(main())
