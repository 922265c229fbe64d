"""Makes the sections of a trace's page about its cluster: capacity, utilisation, load, waiting, failures."""

from __future__ import annotations

from rlsched.report.figures import Canvas, Series
from rlsched.report.markup import Section, figure, paragraph, table
from rlsched.report.phrases import days_note, left_out, number, or_nan, section, within
from rlsched.report.workload import virtual_clusters
from rlsched.terminal.show import in_words, percent
from rlsched.workload.characterise.outcomes import OTHER
from rlsched.workload.characterise.parts import DAY_S, Report

NO_CLUSTER = (
    "No cluster was given (--cluster), so capacity, load and the jobs that can never run are unknown."
)
_WAITS = (("p50_s", "median"), ("p90_s", "p90"), ("p99_s", "p99"))


def cluster(report: Report, canvas: Canvas) -> Section:
    """Make the section about the nodes, the load that the trace offers to them, and virtual clusters."""
    parts = virtual_clusters(report, canvas)
    found = report.get("cluster")
    if found is None:
        return Section("cluster", "Clusters", (paragraph(NO_CLUSTER, "missing"), *parts), NO_CLUSTER)
    load = found["load_frac"]
    say = (
        f"{found['cluster']}: {number(found['nodes'])} nodes, {number(found['gpus'])} GPUs. Offered load "
        f"{'unknown (all jobs at one instant)' if load is None else f'{load:.3f}'}: the GPU-time of the jobs "
        "that can run, divided by GPUs times the time from first to last submission. "
        f"{number(found['never_run'])} jobs can never run on it."
    )
    own = [paragraph(say)]
    if found["never_run"]:
        reasons = found["never_run_by_reason"].items()
        rows = [(why, number(count)) for why, count in reasons]
        own.append(table("Jobs that can never run", ("why", "jobs"), rows, folded=False))
    own.append(
        table(
            "Nodes",
            ("GPU type", "nodes", "GPUs a node", "cores a node", "memory a node (MiB)", "VC"),
            [
                (
                    group["gpu_type"],
                    number(group["count"]),
                    number(group["gpus"]),
                    number(group["cpus"]),
                    number(group["memory_mib"]),
                    group["vc"] or "every one",
                )
                for group in found["groups"]
            ],
        )
    )
    if found["by_vc"]:
        own.append(
            table(
                "Offered load by virtual cluster",
                ("VC", "GPUs", "jobs", "offered load"),
                [
                    (
                        row["vc"],
                        number(row["gpus"]),
                        number(row["jobs"]),
                        "-" if row["load_frac"] is None else f"{row['load_frac']:.3f}",
                    )
                    for row in found["by_vc"]
                ],
            )
        )
    return section("cluster", "Clusters", *own, *parts)


def utilisation(report: Report, canvas: Canvas) -> Section:
    """Make the section about the GPUs that jobs held, by hour and weekday."""
    key, title, found = "utilisation", "Utilisation by hour and weekday", report["utilisation"]
    if (lacks := within(key, title, found)) is not None:
        return lacks
    capacity = found["capacity_gpus"]
    of_it = "" if capacity is None else f", {percent(found['mean_frac'])} of {number(capacity)}"
    say = (
        f"On average jobs held {number(found['mean_gpus'])} GPUs{of_it}, between first and last "
        "submission. A trace does not record how busy these GPUs were." + left_out(found, "wait")
    )
    if capacity is None:
        say += " A share of capacity needs the cluster (--cluster)."
    days = report["clock"]["days"]
    lines = [Series("held", [or_nan(value) for value in found["by_hour_gpus"]])]
    if capacity is not None:
        lines.append(Series("capacity", [float(capacity)] * 24, dashed=True))
    by_hour = canvas.steps(
        list(range(25)),
        lines,
        "Mean GPUs held by hour of the day.",
        "hour of the day",
        "GPUs",
    )
    week = canvas.week(
        days, found["by_hour_of_week_gpus"], "Mean GPUs held in each hour of the week.", "GPUs"
    )
    shown = table(
        "Mean GPUs held by weekday",
        ("day", "GPUs"),
        [(day, number(value)) for day, value in zip(days, found["by_weekday_gpus"], strict=True)],
    )
    note = paragraph(days_note(report["clock"]), "note")
    return section(key, title, paragraph(say), note, figure(by_hour), figure(week), shown)


def over_time(report: Report, canvas: Canvas) -> Section:
    """Make the section about the offered load over time, compared with the capacity."""
    key, title, found = "load", "Offered load against capacity over time", report["over_time"]
    if (lacks := within(key, title, found)) is not None:
        return lacks
    capacity, load = found["capacity_gpus"], found["load_frac"]
    ends = [start + width for start, width in zip(found["start_s"], found["width_s"], strict=True)]
    edges = [at / DAY_S for at in [*found["start_s"], ends[-1]]]
    lines = [Series("offered", found["offered_gpus"]), Series("in demand", found["gpus_in_demand"])]
    if found["gpus_in_use"] is not None:
        lines.append(Series("held", found["gpus_in_use"]))
    if capacity is not None:
        lines.append(Series("capacity", [float(capacity)] * len(ends), dashed=True))
    origin = report["clock"]["origin"]
    x_label = "days from the trace's origin" if origin is None else f"days from {origin}"
    plot = canvas.steps(edges, lines, "GPUs over time, a mean for each step.", x_label, "GPUs")
    jobs = canvas.steps(
        edges,
        [
            Series(
                "jobs",
                [count / width * DAY_S for count, width in zip(found["jobs"], found["width_s"], strict=True)],
            )
        ],
        "Submissions over time.",
        x_label,
        "jobs a day",
    )
    terms = (
        "Offered: GPU-time submitted in a step, divided by its length. In demand: GPUs that jobs "
        "would hold if each "
        "started at once. "
        + ("Held: by the recorded waits. " if found["gpus_in_use"] is not None else "")
        + f"A step is {in_words(max(found['width_s']))} at most."
    )
    parts = [paragraph(terms)]
    if load is None:
        parts.insert(0, paragraph("The cluster's capacity is not known: give it with --cluster.", "missing"))
    else:
        above = [value > 1 for value in load]
        parts.insert(
            0,
            paragraph(
                f"The offered load is above the capacity in {number(sum(above))} of "
                f"{number(len(above))} steps; its "
                f"highest is {max(load):.2f}."
            ),
        )
    rows = [
        (
            f"{start / DAY_S:.2f}",
            f"{width / DAY_S:.2f}",
            number(found["jobs"][k]),
            number(found["offered_gpus"][k]),
            number(found["gpus_in_demand"][k]),
            "-" if found["gpus_in_use"] is None else number(found["gpus_in_use"][k]),
            "-" if load is None else f"{load[k]:.3f}",
        )
        for k, (start, width) in enumerate(zip(found["start_s"], found["width_s"], strict=True))
    ]
    columns = ("from day", "days", "jobs", "GPUs offered", "in demand", "held", "offered load")
    return section(key, title, *parts, figure(plot), figure(jobs), table("Every step", columns, rows))


def waiting(report: Report, canvas: Canvas) -> Section:
    """Make the section about the waiting times of jobs, by size."""
    key, title, found = "waiting", "Waiting by size", report["waiting"]
    if (lacks := within(key, title, found)) is not None:
        return lacks
    say = (
        f"{percent(found['waited_frac'])} of the jobs waited at all, "
        f"{percent(found['over_1h_frac'])} longer than an "
        f"hour; the median is {in_words(found['p50_s'])}, the mean {in_words(found['mean_s'])}, the longest "
        f"{in_words(found['max_s'])}." + left_out(found, "wait")
    )
    rows = found["sizes"]
    plot = canvas.time_bars(
        [row["gpus"] for row in rows],
        [Series(label, [row[name] for row in rows]) for name, label in _WAITS],
        "Waiting by number of GPUs: median, p90 and p99.",
        "GPUs",
    )
    shown = table(
        "Waiting by size",
        ("GPUs", "jobs", "waited", "over 1 h", "mean", "median", "p90", "p99", "longest"),
        [
            (
                row["gpus"],
                number(row["jobs"]),
                percent(row["waited_frac"]),
                percent(row["over_1h_frac"]),
                *(in_words(row[name]) for name in ("mean_s", "p50_s", "p90_s", "p99_s", "max_s")),
            )
            for row in [*rows, {"gpus": "all", **found}]
        ],
    )
    return section(key, title, paragraph(say), figure(plot), shown)


def failures(report: Report, canvas: Canvas) -> Section:
    """Make the section about the outcomes of jobs, and the GPU-time of jobs that failed or were cancelled."""
    key, title, found = "failures", "Failed work", report["outcomes"]
    if (lacks := within(key, title, found)) is not None:
        return lacks
    outcomes = found["outcomes"]
    lost = {row["outcome"]: row for row in outcomes}
    clauses = [
        f"{percent(row['jobs_frac'])} of the jobs with {percent(row['gpu_time_frac'])} of the GPU-time "
        f"({number(row['gpu_time_h'])} GPU-hours) {'were cancelled' if name == 'cancelled' else 'failed'}"
        for name in ("failed", "cancelled")
        if (row := lost.get(name))
    ]
    say = ("; ".join(clauses) or "No job failed or was cancelled") + "." + left_out(found, "status")
    if OTHER in lost:
        say += f" Not known to rlsched, so under “other”: {', '.join(lost[OTHER]['statuses'][:8])}."
    plot = canvas.bars(
        [row["outcome"] for row in outcomes],
        [
            Series("jobs", [row["jobs_frac"] for row in outcomes]),
            Series("GPU-time", [or_nan(row["gpu_time_frac"]) for row in outcomes]),
        ],
        "Share of jobs and of GPU-time by how jobs ended.",
        "",
    )
    by_size = canvas.bars(
        [row["gpus"] for row in found["sizes"]],
        [
            Series(row["outcome"], [size["jobs_frac"][row["outcome"]] for size in found["sizes"]])
            for row in outcomes
        ],
        "How the jobs of each size ended.",
        "GPUs",
        stacked=True,
    )
    shown = table(
        "Outcomes, and the publisher's words for them",
        ("outcome", "statuses", "jobs", "of jobs", "GPU-hours", "of GPU-time", "median run time"),
        [
            (
                row["outcome"],
                ", ".join(f"{status} ({report['statuses'][status]:,})" for status in row["statuses"][:8]),
                number(row["jobs"]),
                percent(row["jobs_frac"]),
                number(row["gpu_time_h"]),
                percent(row["gpu_time_frac"]),
                in_words(row["p50_s"]),
            )
            for row in outcomes
        ],
    )
    return section(key, title, paragraph(say), figure(plot), figure(by_size), shown)


def predictions(report: Report, canvas: Canvas) -> Section:  # noqa: ARG001 - every section has this form
    """Make the section about the accuracy of the predicted run times in the trace."""
    key, title, found = "predictions", "Predicted run times", report["predictions"]
    if found is None:
        say = "The trace holds no predicted run times. That would need the column predicted_duration."
        return Section(key, title, (paragraph(say, "missing"),), say)
    rank = found["spearman"]
    say = (
        f"For {number(found['jobs'])} jobs. Spearman's rank correlation of true and predicted run times: "
        f"{'not defined' if rank is None else f'{rank:.2f}'}; standard deviation of ln(true / predicted): "
        f"{found['ln_error_sd']:.2f}."
    )
    return section(key, title, paragraph(say))
