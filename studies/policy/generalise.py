"""Train with several seeds, and with clusters left out whole; measure the result on validation parts.

    .venv/bin/python -m studies.policy.generalise
    .venv/bin/python -m studies.policy.generalise --only ms_itp_05 --only philly/0e4a51 --budget-s 480

Several seeds: the data of the default policy (`benchmarks/training_data.py`), other weights, episodes and
draws. Clusters left out: each of ITP and each smaller VC of Philly in turn is neither trained nor validated
on by a shorter run, and its policy is measured there. Every run and every replay is a file in OUT; existing
files are not made again, Ctrl-C keeps finished ones, and a stopped training is resumed. Nothing is
measured on the test split.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError
from rlsched_agents.ppo.recipes import Recipe, load_recipe
from rlsched_agents.runtime.checkpoint import load_checkpoint
from studies.policy.cases import TRACES, UNSEEN, Case, cases
from studies.policy.compare import read_results
from studies.policy.generalise_tables import DEFAULT, Line, left_out_section, seeds_section
from studies.policy.opponents import REFERENCES
from studies.policy.options import add_folders, reported
from studies.policy.runs import Job, missing, run_job
from studies.policy.trainings import Run, Trained, policy_file, read_trained, rule_of, short, train_run

SEEDS: Final = "seeds"
SEEDS_LOADS: Final = (0.95,)
LEFT_OUT_LOADS: Final = (0.85, 0.95)


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line, run the missing parts, print the tables; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="generalise", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_folders(parser, out=Path("runs/generalise"))
    parser.add_argument("--recipe", default="reserving", help="recipe or .toml [default: %(default)s]")
    parser.add_argument("--seeds", type=int, default=5, help="runs on all data [default: %(default)s]")
    parser.add_argument(
        "--left-out-seeds", type=int, default=2, help="runs for each cluster left out [default: %(default)s]"
    )
    parser.add_argument(
        "--timesteps", type=int, default=300_000, help="decisions of a run on all data [default: %(default)s]"
    )
    parser.add_argument(
        "--left-out-timesteps", type=int, default=100_000, help="of the others [default: %(default)s]"
    )
    parser.add_argument(
        "--init",
        type=Path,
        help="checkpoint that the runs on all data begin with, which has seen most clusters; the others "
        "always begin with the rule [default: the rule]",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=(SEEDS, *UNSEEN),
        metavar="PART",
        help=f"{SEEDS}, or a cluster to leave out; may be repeated [default: all]",
    )
    return reported(_generalise, parser.parse_args(words))


def runs_of(arguments: argparse.Namespace, parts: Sequence[str]) -> list[Run]:
    """Trainings of these parts: trainings on all data (`SEEDS`), then cluster by cluster.

    Raises:
        InputError: A number below its least, or a start that follows another rule than the recipe.
    """
    for name, least in (("seeds", 0), ("left_out_seeds", 0), ("timesteps", 1), ("left_out_timesteps", 1)):
        given = getattr(arguments, name)
        if given < least:
            raise InputError(f"expected --{name.replace('_', '-')} of {least} or more, got {given}")
    recipe: Recipe = load_recipe(arguments.recipe)
    if arguments.init is not None:
        begun = load_checkpoint(arguments.init).card.network
        follows, wanted = rule_of(begun), rule_of(recipe.network)
        if follows != wanted:
            raise InputError(
                f"{arguments.init}: this policy follows {follows.name}, recipe {arguments.recipe} "
                f"{wanted.name}; give a recipe of the same rule, or leave out --init"
            )
    found = [
        Run(cluster="", seed=seed, timesteps=arguments.timesteps, recipe=recipe, init=arguments.init)
        for seed in range(arguments.seeds if SEEDS in parts else 0)
    ]
    found += [
        Run(cluster=cluster, seed=seed, timesteps=arguments.left_out_timesteps, recipe=short(recipe))
        for cluster in UNSEEN
        if cluster in parts
        for seed in range(arguments.left_out_seeds)
    ]
    return found


def cases_of(run: Run) -> list[Case]:
    """Validation parts on which the policy of a run is measured; for a left-out cluster, its own."""
    if run.cluster:
        return cases([run.cluster], ["validation"], LEFT_OUT_LOADS)
    return [
        *cases(TRACES, ["validation"], SEEDS_LOADS, predictions="good"),
        *cases(TRACES, ["validation"], SEEDS_LOADS),
    ]


def jobs_of(run: Run, trained: Trained, policy: Policy) -> list[Job]:
    """Its policy, the rule that it follows and both references on its cases; the default one if it has
    not been trained for the case."""
    others = [*map(Policy, REFERENCES), trained.followed, *([Policy(DEFAULT)] if run.cluster else [])]
    each = {one.name: one for one in (*others, policy)}.values()
    return [Job(case=case, policy=one) for case in cases_of(run) for one in each]


def policy_of(out: Path, run: Run) -> Policy:
    """Result of training a run."""
    return Policy.of(f"ppo:{policy_file(out, run)}")


def _generalise(arguments: argparse.Namespace) -> int:
    runs = runs_of(arguments, arguments.only or (SEEDS, *UNSEEN))
    folder = arguments.out / "replays"
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + arguments.budget_s
    stopped = False
    try:
        for number, run in enumerate(runs, 1):
            if time.monotonic() >= deadline:
                break
            if not _run(arguments, run, folder, deadline, f"{number} of {len(runs)}, {run.name}"):
                stopped = True
                break
    except KeyboardInterrupt:
        stopped = True
    print(_text(arguments.out, runs, folder))
    if not stopped:
        every = _text(arguments.out, runs_of(arguments, (SEEDS, *UNSEEN)), folder)
        (arguments.out / "tables.md").write_text(every + "\n", encoding="utf-8")
    return 130 if stopped else 0


def _run(arguments: argparse.Namespace, run: Run, folder: Path, deadline: float, said: str) -> bool:
    """Train and replay missing parts, with a line on standard error; False: it was stopped."""
    trained, began = read_trained(arguments.out, run), time.perf_counter()
    if trained is None:
        print(f"{said}: training on {run.timesteps:,} decisions", file=sys.stderr)
        trained = train_run(arguments.out, arguments.traces, run)
        if trained is None:
            return False
        kept = f"policy of decision {trained.kept_at:,} kept" if trained.kept_at else "its start kept"
        print(
            f"{said}: {kept}; {trained.steps_per_s:,.0f} decisions a second, {trained.wall_s:.0f} s in all",
            file=sys.stderr,
        )
    jobs = jobs_of(run, trained, policy_of(arguments.out, run))
    new = missing(jobs, folder)
    for job in new:
        if time.monotonic() >= deadline:
            break
        run_job(job, arguments.traces, folder)
    left = len(missing(jobs, folder))
    if new:
        print(
            f"{said}: {len(new) - left} replays, {left} missing, {time.perf_counter() - began:.0f} s",
            file=sys.stderr,
        )
    return True


def _text(out: Path, runs: Sequence[Run], folder: Path) -> str:
    """Both tables, from the available results."""
    lines, jobs = [], []
    for run in runs:
        trained = read_trained(out, run)
        if trained is not None:
            policy = policy_of(out, run)
            jobs += jobs_of(run, trained, policy)
            lines.append(Line(trained=trained, policy=policy.name, cases=cases_of(run)))
    results = read_results(jobs, folder)
    parts = []
    if seeds := sum(not run.cluster for run in runs):
        parts.append(seeds_section([one for one in lines if not one.trained.cluster], results, seeds))
    if left_out := len(runs) - seeds:
        ours = [one for one in lines if one.trained.cluster]
        parts.append(left_out_section(ours, results, left_out, _seen()))
    return "\n\n".join(parts)


def _seen() -> set[str]:
    """Clusters in the training of the default policy."""
    uses = load_checkpoint("default").card.traces
    trained = {use.trace for use in uses if use.train_s[0] < use.train_s[1]}
    return {cluster for cluster in UNSEEN if cluster.partition("/")[0] in trained}


if __name__ == "__main__":
    sys.exit(main())
