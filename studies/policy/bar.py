"""Measure the rows of the bar after the first: preemption, sharing, good predictions, the dial.

    .venv/bin/python -m studies.policy.bar
    .venv/bin/python -m studies.policy.bar --study preempt50 --policy runs/mine
    .venv/bin/python -m studies.policy.bar --quick              # one trace and load, printed

Each result is a file in OUT/bar/SPLIT; existing results are not run again, and Ctrl-C keeps finished ones.
Tables over all cases are printed, and written to OUT/bar/SPLIT.md; every case's own table goes to
OUT/bar/SPLIT-cases.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rlsched.errors import InputError
from studies.policy.bar_studies import STUDIES, Study, rows_of, tested_in, untuned_in
from studies.policy.bar_tables import case_tables, study_section
from studies.policy.cases import TRACES
from studies.policy.compare import QUICK_LOAD, QUICK_TRACE, jobs_of, log_if_test, read_results
from studies.policy.journal import LOG_FILE
from studies.policy.opponents import TUNED_FILE, policy_id, read_tuned
from studies.policy.options import add_common, add_policy, policies_of, reported
from studies.policy.runs import Job, missing, run_all


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line, run the missing results, print the tables; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="bar", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common(parser, out=Path("runs/policy"))
    parser.add_argument("--study", action="append", choices=tuple(STUDIES), help="default: all")
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    add_policy(parser, default="the policies of each study, ppo in most that have one")
    parser.add_argument("--load", action="append", type=float, help="default: the loads of each study")
    parser.add_argument("--quick", action="store_true", help=f"only {QUICK_TRACE} at one load")
    parser.add_argument("--tuned", type=Path, default=TUNED_FILE, help="file of tuned values")
    parser.add_argument("--log", type=Path, default=LOG_FILE, help="log of runs on the test split")
    return reported(_bar, parser.parse_args(words))


def _bar(arguments: argparse.Namespace) -> int:
    policies = policies_of(arguments)
    tuned = read_tuned(arguments.tuned) if arguments.tuned.exists() else None
    studies = [STUDIES[name] for name in dict.fromkeys(arguments.study or STUDIES)]
    if arguments.split == "test":
        studies = [study for study in studies if not study.part]
    ids = {one.name: policy_id(one) for study in studies for one in tested_in(study, policies)}
    without = {study.name: untuned_in(tuned, study) for study in studies}
    if arguments.split == "test" and any(without.values()):
        raise InputError(
            f"{arguments.tuned}: no values from their grids for {_named(without)}; the test split is read "
            "when all rules are tuned: run `python -m studies.policy.tune`, and commit the file"
        )
    folder = arguments.out / "bar" / arguments.split
    traces = {study.name: _traces(arguments, study) for study in studies}
    todo = {
        study.name: study.cases(traces[study.name], arguments.split, _loads(arguments, study))
        for study in studies
    }
    rows = {
        study.name: {one: rows_of(study, tuned, one, policies) for one in traces[study.name]}
        for study in studies
    }
    jobs = {name: jobs_of(found, rows[name]) for name, found in todo.items()}
    every: list[Job] = [job for found in jobs.values() for job in found]
    new = missing(every, folder)
    log_if_test(arguments, new, ids)
    done, stopped = run_all(
        new, arguments.traces, folder, workers=arguments.workers, budget_s=arguments.budget_s
    )
    print(f"{done} of {len(new)} results run, {len(missing(every, folder))} missing", file=sys.stderr)
    sections, pages = [], []
    for study in studies:
        results = read_results(jobs[study.name], folder)
        sections.append(
            study_section(study, todo[study.name], rows[study.name], results, untuned=without[study.name])
        )
        pages.append(case_tables(study, todo[study.name], rows[study.name], results))
    under_test = f"; under test: {', '.join(sorted(ids.values()))}" if ids else ""
    head = f"{arguments.split.capitalize()} split{under_test}.\n\n"
    text = head + "\n\n".join(sections)
    print(text)
    if not stopped:
        folder.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
        every_case = folder.with_name(f"{arguments.split}-cases.md")
        every_case.write_text(head + "\n\n".join(pages) + "\n", encoding="utf-8")
    return 130 if stopped else 0


def _traces(arguments: argparse.Namespace, study: Study) -> list[str]:
    """The requested traces of the study; a quick run takes one."""
    found = study.traces(arguments.trace or (), [QUICK_TRACE] if arguments.quick else TRACES)
    return found[:1] if arguments.quick and not arguments.trace else found


def _loads(arguments: argparse.Namespace, study: Study) -> list[float] | None:
    """The requested loads; a quick run takes one of the study."""
    if arguments.load or not arguments.quick:
        return list(arguments.load) if arguments.load else None
    return [QUICK_LOAD] if QUICK_LOAD in study.loads else [study.loads[0]]


def _named(without: dict[str, list[str]]) -> str:
    return ", ".join(f"{rule} ({study})" for study, rules in without.items() for rule in rules)


if __name__ == "__main__":
    sys.exit(main())
