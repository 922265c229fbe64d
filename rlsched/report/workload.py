"""Makes the sections of a trace's page about jobs: sizes, run times, submissions, users, repeated jobs."""

from __future__ import annotations

from rlsched.report.figures import Canvas, Series
from rlsched.report.markup import Section, figure, paragraph, table
from rlsched.report.phrases import days_note, left_out, number, or_nan, section, within
from rlsched.terminal.show import in_words, percent
from rlsched.workload.characterise.parts import Report

MOST_CURVES = 6
_QUANTILES = ("p10_s", "p50_s", "p90_s", "p99_s", "max_s")


def sizes(report: Report, canvas: Canvas) -> Section:
    """Make the section about jobs and GPU-time by number of GPUs."""
    rows = report["sizes"]
    most, heaviest = max(rows, key=_jobs), max(rows, key=lambda row: or_nan(row["gpu_time_frac"], 0.0))
    say = (
        f"{percent(most['jobs_frac'])} of the jobs are of size {most['gpus']}; "
        f"most GPU-time ({percent(heaviest['gpu_time_frac'])}) goes to size {heaviest['gpus']}. "
        "Size is the number of GPUs that a job asks for."
    )
    plot = canvas.bars(
        [row["gpus"] for row in rows],
        [
            Series("jobs", [row["jobs_frac"] for row in rows]),
            Series("GPU-time", [or_nan(row["gpu_time_frac"]) for row in rows]),
        ],
        "Share of the jobs and of the GPU-time by number of GPUs.",
        "GPUs",
    )
    shown = table(
        "Jobs and GPU-time by size",
        ("GPUs", "jobs", "of jobs", "of GPU-time"),
        [
            (row["gpus"], number(row["jobs"]), percent(row["jobs_frac"]), percent(row["gpu_time_frac"]))
            for row in rows
        ],
    )
    return section("sizes", "Job sizes and GPU-time by size", paragraph(say), figure(plot), shown)


def durations(report: Report, canvas: Canvas) -> Section:
    """Make the section about the run times of jobs, of all sizes and by size."""
    all_jobs, curves = report["durations"], report["duration_curves"]
    say = (
        f"Half of the jobs run for at most {in_words(all_jobs['p50_s'])}, one in ten for more than "
        f"{in_words(all_jobs['p90_s'])}, one in a hundred for more than "
        f"{in_words(all_jobs['p99_s'])}; the mean "
        f"is {in_words(all_jobs['mean_s'])}."
    )
    lines = [Series("of the jobs", curves["jobs_frac"])]
    if curves["gpu_time_frac"] is not None:
        lines.append(Series("of the GPU-time", curves["gpu_time_frac"]))
    overall = canvas.curves(
        curves["at_s"], lines, "Share of jobs, and of GPU-time, in jobs no longer than this.", "run time"
    )
    wanted = sorted(range(len(report["sizes"])), key=lambda k: -report["sizes"][k]["jobs"])[:MOST_CURVES]
    by_size = canvas.curves(
        curves["at_s"],
        [Series(row["gpus"], row["jobs_frac"]) for k, row in enumerate(curves["sizes"]) if k in wanted],
        "Share of the jobs of a size (GPUs) that are no longer than this"
        + (f" (the {MOST_CURVES} sizes with most jobs)." if len(report["sizes"]) > MOST_CURVES else "."),
        "run time",
    )
    shown = table(
        "Run times by size",
        ("GPUs", "jobs", "mean", "p10", "median", "p90", "p99", "longest"),
        [
            (
                row["gpus"],
                number(row["jobs"]),
                in_words(row["mean_s"]),
                *(in_words(row[key]) for key in _QUANTILES),
            )
            for row in [*report["sizes"], {"gpus": "all", "jobs": report["jobs"], **all_jobs}]
        ],
    )
    return section("durations", "Run times", paragraph(say), figure(overall), figure(by_size), shown)


def arrivals(report: Report, canvas: Canvas) -> Section:
    """Make the section about the submission times of jobs, and the demand that results from them."""
    rate, week, days = report["arrivals"], report["week"], report["clock"]["days"]
    bursts = report["bursts"]
    say = (
        f"{number(rate['per_day_mean'])} jobs a day on average; half of them come within "
        f"{in_words(rate['gap_p50_s'])} of the one before."
        if rate["per_day_mean"] is not None
        else "All jobs are submitted at one instant."
    )
    parts = [paragraph(say), paragraph(days_note(report["clock"]), "note")]
    parts.append(
        figure(canvas.week(days, week["jobs_per_hour"], "Mean submissions in each hour of the week.", "jobs"))
    )
    if week["gpus_in_demand"] is not None:
        caption = "GPUs that jobs would hold if none had to wait: mean in each hour of the week."
        parts.append(figure(canvas.week(days, week["gpus_in_demand"], caption, "GPUs")))
    parts.append(
        paragraph(
            f"In bursts: {percent(bursts['jobs_frac'])} of the jobs come within "
            f"{bursts['gap_s']:.0f} s of another "
            "one of the same VC and the same number of GPUs, without a longer gap in between; the "
            "largest burst "
            f"has {number(bursts['jobs_max'])} jobs."
        )
    )
    parts.append(
        table(
            "Submissions by hour of the day",
            ("hour", "jobs"),
            [(f"{hour:02d}", number(jobs)) for hour, jobs in enumerate(rate["by_hour_of_day"])],
        )
    )
    parts.append(
        table(
            "Busiest hours",
            ("from", "jobs", "GPU-hours submitted"),
            [
                (f"day {hour['start_s'] / 86400:.2f}", number(hour["jobs"]), number(hour["gpu_time_h"]))
                for hour in rate["busiest_hours"]
            ],
        )
    )
    return section("arrivals", "Submissions by hour and weekday", *parts)


def users(report: Report, canvas: Canvas) -> Section:
    """Make the section about users, and the fraction of the GPU-time that the largest users take."""
    found = report["by_user"]
    if (lacks := within("users", "Users", found)) is not None:
        return lacks
    tenth = next(row for row in found["top"] if row["users_frac"] == 0.1)
    largest = "The largest one has" if tenth["users"] == 1 else f"The largest {number(tenth['users'])} have"
    say = (
        f"{number(found['users'])} users. {largest} {percent(tenth['gpu_time_frac'])} of the GPU-time and "
        f"{percent(tenth['jobs_frac'])} of the jobs; half of the users have at most "
        f"{number(found['jobs_p50'])} jobs." + left_out(found, "user")
    )
    parts = [paragraph(say)]
    if found["curve"]["gpu_time_frac"] is not None:
        plot = canvas.shares(
            found["curve"]["users_frac"],
            Series("users, largest first", found["curve"]["gpu_time_frac"]),
            "Share of the GPU-time that the largest users take.",
            "% of the users",
            "% of the GPU-time",
        )
        parts.append(figure(plot))
    parts.append(
        table(
            "Shares of the largest users",
            ("of the users", "users", "of jobs", "of GPU-time"),
            [
                (
                    percent(row["users_frac"]),
                    number(row["users"]),
                    percent(row["jobs_frac"]),
                    percent(row["gpu_time_frac"]),
                )
                for row in found["top"]
            ],
        )
    )
    parts.append(_owners("Largest users by GPU-time", "user", found["largest"]))
    return section("users", "Users", *parts)


def repeats(report: Report, canvas: Canvas) -> Section:
    """Make the section about jobs that are submitted repeatedly with the same name."""
    found = report["repeats"]
    if (lacks := within("repeats", "Repeated jobs", found)) is not None:
        return lacks
    whose = "of one user under one name" if found["with_user"] else "of one name (users are not recorded)"
    say = (
        f"{percent(found['repeated_jobs_frac'])} of the jobs, and "
        f"{percent(found['repeated_gpu_time_frac'])} of the "
        f"GPU-time, are {whose}, more than once. {number(found['names'])} names; the most frequent one has "
        f"{number(found['runs_max'])} jobs. Names are compared as they are written." + left_out(found, "name")
    )
    parts = [paragraph(say)]
    if found["ln_duration_sd"] is not None:
        parts.append(
            paragraph(
                "Over repeated jobs the standard deviation of ln(run time) is "
                f"{found['ln_duration_sd']:.2f}; around "
                f"the mean of their own name it is {found['ln_duration_sd_within']:.2f}. The "
                "smaller the second is "
                "against the first, the more a name reveals about the run time."
            )
        )
    plot = canvas.bars(
        [row["runs"] for row in found["runs"]],
        [
            Series("jobs", [row["jobs_frac"] for row in found["runs"]]),
            Series("GPU-time", [or_nan(row["gpu_time_frac"]) for row in found["runs"]]),
        ],
        "Share of jobs and of GPU-time by how many jobs have the same name.",
        "jobs of the same name",
    )
    shown = table(
        "Names by number of jobs",
        ("jobs of the name", "names", "of jobs", "of GPU-time"),
        [
            (row["runs"], number(row["names"]), percent(row["jobs_frac"]), percent(row["gpu_time_frac"]))
            for row in found["runs"]
        ],
    )
    return section("repeats", "Repeated jobs", *parts, figure(plot), shown)


def virtual_clusters(report: Report, canvas: Canvas) -> list[str]:
    """Return the parts about virtual clusters for the section on the cluster."""
    found, most = report["by_vc"], 20
    if "missing" in found:
        return [paragraph(f"{found['say']} That would need the column vc.", "missing")]
    rows = found["rows"]
    plot = canvas.bars(
        [row["vc"] for row in rows[:most]],
        [
            Series("jobs", [row["jobs"] / found["jobs"] for row in rows[:most]]),
            Series("GPU-time", [or_nan(row["gpu_time_frac"]) for row in rows[:most]]),
        ],
        "Share of jobs and of GPU-time by virtual cluster"
        + (f", the {most} largest of {len(rows)}." if len(rows) > most else "."),
        "virtual cluster",
    )
    say = f"Jobs name {number(len(rows))} virtual clusters (VC)." + left_out(found, "VC")
    return [paragraph(say), figure(plot), _owners("Virtual clusters by GPU-time", "vc", rows)]


def _owners(caption: str, key: str, rows: list[Report]) -> str:
    return table(
        caption,
        (key.upper() if key == "vc" else key, "jobs", "GPU-hours", "of GPU-time", "median run time"),
        [
            (
                row[key],
                number(row["jobs"]),
                number(row["gpu_time_h"]),
                percent(row["gpu_time_frac"]),
                in_words(row["p50_s"]),
            )
            for row in rows
        ],
    )


def _jobs(row: Report) -> int:
    jobs: int = row["jobs"]
    return jobs
