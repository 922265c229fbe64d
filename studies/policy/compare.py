"""Compare policies with the tuned rules, and write the tables.

    .venv/bin/python -m studies.policy.compare
    .venv/bin/python -m studies.policy.compare --quick          # one trace and load, under five minutes
    .venv/bin/python -m studies.policy.compare --policy ppo --policy easy --set reserve_after=1h
    .venv/bin/python -m studies.policy.compare --split test     # counted, in test_runs.jsonl

Four traces at four loads, on the validation split unless the test split is requested. Each result is a file
in OUT/SPLIT; existing results of the same policy are not run again, and Ctrl-C keeps finished ones. The
tables are printed, and written to OUT/SPLIT.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError
from studies.policy.cases import LOADS, TRACES, Case, cases
from studies.policy.journal import LOG_FILE, append_run
from studies.policy.opponents import TUNED_FILE, Entry, digest, entries, policy_id, read_tuned, untuned
from studies.policy.options import add_common, add_policy, policies_of, reported
from studies.policy.runs import Job, missing, result_of, run_all
from studies.policy.tables import Results, section

QUICK_TRACE, QUICK_LOAD = "philly/6214e9", 0.95


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line, run the missing results, print the tables; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common(parser, out=Path("runs/policy"))
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    add_policy(parser, default="ppo")
    parser.add_argument("--load", action="append", type=float, help="default: 0.7, 0.85, 0.95 and 1.05")
    parser.add_argument(
        "--preemptible", type=float, default=1.0, help="share of the jobs that may be preempted"
    )
    parser.add_argument("--quick", action="store_true", help=f"only {QUICK_TRACE} at load {QUICK_LOAD}")
    parser.add_argument("--tuned", type=Path, default=TUNED_FILE, help="file of tuned values")
    parser.add_argument("--log", type=Path, default=LOG_FILE, help="log of runs on the test split")
    return reported(_compare, parser.parse_args(words))


def jobs_of(todo: Sequence[Case], rows: dict[str, list[Entry]]) -> list[Job]:
    """Return a job for every row on every case; runs with models come last.

    Raises:
        InputError: Two policies of one trace have one name.
    """
    for some in rows.values():
        called: dict[str, Policy] = {}
        for one in some:
            if called.setdefault(one.policy.name, one.policy) != one.policy:
                raise InputError(f"two policies are called {one.policy.name!r}; give yours another name")
    return [
        Job(case=case, policy=one.policy, models=one.models)
        for case in todo
        for one in sorted(rows[case.trace], key=lambda one: one.models)
    ]


def _compare(arguments: argparse.Namespace) -> int:
    if not 0.0 <= arguments.preemptible <= 1.0:
        raise InputError(f"expected --preemptible from 0 to 1, got {arguments.preemptible:g}")
    policies = policies_of(arguments) or [Policy("ppo")]
    ids = {one.name: policy_id(one) for one in policies}
    traces = arguments.trace or ([QUICK_TRACE] if arguments.quick else list(TRACES))
    loads = arguments.load or ([QUICK_LOAD] if arguments.quick else list(LOADS))
    tuned = read_tuned(arguments.tuned) if arguments.tuned.exists() else None
    without = untuned(tuned)
    if arguments.split == "test" and without:
        raise InputError(
            f"{arguments.tuned}: no values for {', '.join(without)} from their grids; the test split is read "
            "when all rules are tuned: run `python -m studies.policy.tune`, and commit the file"
        )
    rows = {trace: entries(tuned, trace, policies) for trace in traces}
    todo = cases(traces, [arguments.split], loads, preemptible_frac=arguments.preemptible)
    folder, jobs = arguments.out / arguments.split, jobs_of(todo, rows)
    new = missing(jobs, folder)
    log_if_test(arguments, new, ids)
    done, stopped = run_all(
        new, arguments.traces, folder, workers=arguments.workers, budget_s=arguments.budget_s
    )
    print(f"{done} of {len(new)} results run, {len(missing(jobs, folder))} missing", file=sys.stderr)
    text = section(
        todo,
        rows,
        read_results(jobs, folder),
        split=arguments.split,
        ids=sorted(ids.values()),
        untuned=without,
    )
    print(text)
    if not stopped:
        (arguments.out / f"{arguments.split}.md").write_text(text + "\n", encoding="utf-8")
    return 130 if stopped else 0


def log_if_test(arguments: argparse.Namespace, new: Sequence[Job], ids: dict[str, str]) -> None:
    """Log the run before jobs are run on the test split."""
    if new and arguments.split == "test":
        append_run(
            arguments.log,
            policies=list(dict.fromkeys(job.policy.name for job in new)),
            cases=list(dict.fromkeys(job.case.name for job in new)),
            checkpoints=ids,
            tuned=digest(arguments.tuned),
        )


def read_results(jobs: Sequence[Job], folder: Path) -> Results:
    """The available results."""
    return {
        (job.case.name, job.policy.name, job.models): result_of(job, folder)
        for job in jobs
        if job.path(folder).exists()
    }


if __name__ == "__main__":
    sys.exit(main())
