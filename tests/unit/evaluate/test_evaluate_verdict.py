"""Texts of `rlsched evaluate`: the verdict, its cautions, recorded schedules, legends of columns."""

from __future__ import annotations

import io
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

import rlsched as rs
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.terminal.progress import LINES_EVERY_S, Progress
from rlsched.workload.load import crowded_vcs
from rlsched_agents.cli.evaluate import evaluate
from rlsched_agents.evaluate.legend import LEGEND
from rlsched_agents.evaluate.pairs import Ratio
from rlsched_agents.evaluate.report import EvaluationReport
from rlsched_agents.evaluate.tables import print_report
from rlsched_agents.evaluate.verdict import LEAST_JOBS, cautions_of, verdict_of
from rlsched_envs.sim.modelling import Models, PowerDownPlan

CLUSTER = ClusterSpec.uniform(2, 4)
CLAIMS = ("least", "soonest", "less (", "times as long")


@pytest.fixture(scope="module")
def report() -> EvaluationReport:
    """Two policies on jobs of a month, in which narrow jobs wait behind wide ones; hours and not days."""
    rng = np.random.default_rng(1)
    count = 600
    trace = rs.Trace.from_columns(
        name="month",
        submit_s=np.sort(rng.uniform(0, 30 * 86400, count)),
        duration_s=rng.lognormal(8.5, 1.2, count),
        num_gpus=rng.choice([1.0, 2.0, 8.0], count, p=[0.6, 0.3, 0.1]),
        extra={"queue_s": np.where(np.arange(count) % 3, 7_200.0, np.nan)},
    )
    found: EvaluationReport = rs.simulate(trace, CLUSTER, ["fifo", "sjf", "qssf-backfill"], nodes=3).compare()
    return found


def with_ratios(report: EvaluationReport, **ratios: Any) -> EvaluationReport:
    """Two policies, with these values in place of the second one's."""
    one = msgspec.structs.replace(report.paired["qssf-backfill"], **ratios)
    policies = {name: report.policies[name] for name in ("fifo", "qssf-backfill")}
    return msgspec.structs.replace(report, policies=policies, paired={"qssf-backfill": one}, fed_truth=[])


def with_others(report: EvaluationReport, **ratios: Ratio) -> EvaluationReport:
    """Policies with these names next to the baseline, with these ratios."""
    one, mine = report.paired["qssf-backfill"], report.policies["qssf-backfill"]
    paired = {name: msgspec.structs.replace(one, queue_mean_ratio=ratio) for name, ratio in ratios.items()}
    policies = {"fifo": report.policies["fifo"], **dict.fromkeys(ratios, mine)}
    return msgspec.structs.replace(report, policies=policies, paired=paired, fed_truth=[])


# ---- verdict -------------------------------------------------------------------------------------


def test_verdict_has_the_result_with_its_interval(report: EvaluationReport) -> None:
    said = verdict_of(report)
    assert said.startswith("Jobs wait least under qssf-backfill: ")
    ratio = report.paired["qssf-backfill"].queue_mean_ratio
    assert ratio is not None
    assert ratio.high is not None
    assert f"which is {100 * (1 - ratio.ratio):.0f} % less ({100 * (1 - ratio.high):.0f} % to " in said
    assert f"95 % interval over {report.paired['sjf'].blocks} days" in said
    assert "sjf," not in said
    assert report.verdict == said


def test_sentence_names_the_slower_jobs(report: EvaluationReport) -> None:
    made = with_ratios(report, losses_frac=0.123)
    sizes = report.policies["fifo"].by_gpus
    worse = {
        size: msgspec.structs.replace(one, queue_mean_s=(one.queue_mean_s or 0.0) + 3_600.0 * number)
        for number, (size, one) in enumerate(sizes.items())
    }
    base = msgspec.structs.replace(report.policies["fifo"], queue_max_s=17 * 3_600.0)
    mine = msgspec.structs.replace(base, by_gpus=worse, queue_max_s=29 * 3_600.0)
    said = verdict_of(msgspec.structs.replace(made, policies={"fifo": base, "qssf-backfill": mine}))
    assert "; 12.3 % of the jobs wait longer, jobs of 8 GPUs wait longer on average (" in said
    assert ") and so do jobs of 1 other size, and the longest" in said
    assert said.endswith(", and the longest wait grows from 17.0 h to 1.2 d.")
    few = {size: msgspec.structs.replace(one, jobs=LEAST_JOBS - 1) for size, one in worse.items()}
    mine = msgspec.structs.replace(mine, by_gpus=few)
    said = verdict_of(msgspec.structs.replace(made, policies={"fifo": base, "qssf-backfill": mine}))
    assert "; 12.3 % of the jobs wait longer, and the longest" in said, "the mean of this few is chance"
    alike = verdict_of(msgspec.structs.replace(made, policies={"fifo": base, "qssf-backfill": base}))
    assert alike.endswith("; 12.3 % of the jobs wait longer, but no size of job does on average.")
    lost = with_ratios(report, queue_mean_ratio=Ratio(1.5, 1.2, 1.9))
    assert "wait longer" not in verdict_of(lost)


@pytest.mark.parametrize("ends", [(0.90, 1.02), (0.5, 1.0), (0.98, 1.3)])
def test_no_claim_where_the_interval_contains_1(ends: tuple[float, float], report: EvaluationReport) -> None:
    said = verdict_of(with_ratios(report, queue_mean_ratio=Ratio(0.99, *ends)))
    assert said.startswith("No difference is shown between qssf-backfill and fifo")
    assert f"from {ends[0]:.2f} to {ends[1]:.2f}" in said
    assert not any(claim in said for claim in CLAIMS)


def test_narrow_intervals_have_more_digits(report: EvaluationReport) -> None:
    said = verdict_of(with_ratios(report, queue_mean_ratio=Ratio(1.0, 0.9998, 1.0003)))
    assert "from 0.9998 to 1.0003 (" in said
    same = verdict_of(with_ratios(report, queue_mean_ratio=Ratio(1.0, 0.99999, 1.00001)))
    assert same.startswith("qssf-backfill and fifo have equal results: jobs wait ")


def test_reference_may_be_the_best(report: EvaluationReport) -> None:
    said = verdict_of(with_ratios(report, queue_mean_ratio=Ratio(1.5, 1.2, 1.9)))
    assert said.startswith("Jobs wait least under fifo, the baseline: ")
    assert "1.50 times as long (1.20 to 1.90, " in said


def test_reference_is_not_the_best_if_another_cannot_be_distinguished(
    report: EvaluationReport,
) -> None:
    made = with_others(
        report, easy=Ratio(1.2, 0.9, 1.6), srtf=Ratio(1.9, 1.5, 2.5), las=Ratio(1.1, 1.05, 1.2)
    )
    said = verdict_of(made)
    assert said.startswith("No difference is shown between easy and fifo")
    assert not any(claim in said for claim in CLAIMS)


def test_policies_not_distinguished_from_the_best_are_named(report: EvaluationReport) -> None:
    made = with_others(
        report, easy=Ratio(0.5, 0.4, 0.6), srtf=Ratio(0.55, 0.45, 0.7), las=Ratio(0.9, 0.8, 0.95)
    )
    assert verdict_of(made).startswith("Jobs wait least under easy")
    (note,) = [one for one in cautions_of(made) if "--baseline" in one]
    assert note.startswith("easy has the least mean, and its interval overlaps with that of srtf:")
    apart = with_others(report, easy=Ratio(0.5, 0.4, 0.6), las=Ratio(0.9, 0.8, 0.95))
    assert not any("--baseline" in one for one in cautions_of(apart))
    for ratio in (Ratio(0.5, 0.4, 1.6), Ratio(1.5, 1.4, 1.6), Ratio(0.5, None, None)):  # no claim
        assert not any("--baseline" in one for one in cautions_of(with_others(report, easy=ratio, las=ratio)))


@pytest.mark.parametrize(("ratio", "first"), [(0.5, "qssf-backfill"), (1.5, "fifo")])
def test_few_days_limit_the_claim(ratio: float, first: str, report: EvaluationReport) -> None:
    said = verdict_of(with_ratios(report, queue_mean_ratio=Ratio(ratio, None, None), blocks=3))
    assert said.startswith(f"Here jobs wait least under {first}")
    assert "there are 3 days of submissions, too few to claim more (10 are needed)" in said
    seldom = with_ratios(report, queue_mean_ratio=Ratio(ratio, ratio, ratio), waiting_blocks=1)
    assert verdict_of(seldom).startswith(f"Here jobs wait least under {first}")
    assert "jobs waited on 1 of 30 days, too few to claim more" in verdict_of(seldom), (
        "an interval of one day"
    )


def test_means_that_print_alike_are_not_distinguished(report: EvaluationReport) -> None:
    few = with_ratios(report, queue_mean_ratio=Ratio(0.99999, None, None), blocks=3)
    base = few.policies["fifo"]
    same = msgspec.structs.replace(few, policies={"fifo": base, "qssf-backfill": base})
    assert " on average under qssf-backfill as under fifo; there are 3 days" in verdict_of(same)
    assert "least" not in verdict_of(same)


def test_days_with_waiting_jobs_are_counted(report: EvaluationReport) -> None:
    trace = rs.Trace.from_columns(
        name="t", submit_s=[86_400.0 * day for day in (0, 0, 1, 2)], duration_s=[9] * 4, num_gpus=[8] * 4
    )
    one = rs.simulate(trace, CLUSTER, ["fifo", "qssf"]).compare().paired["qssf"]
    assert (one.blocks, one.waiting_blocks) == (3, 1)
    paired = report.paired["qssf-backfill"]
    assert paired.waiting_blocks is not None
    assert paired.blocks is not None
    assert 10 <= paired.waiting_blocks <= paired.blocks


def test_policies_that_preempt_are_compared_by_jct(report: EvaluationReport) -> None:
    made = with_ratios(report, jct_mean_ratio=Ratio(0.8, 0.7, 0.9), queue_mean_ratio=Ratio(0.1, 0.05, 0.2))
    assert "jobs wait least" in verdict_of(made).lower()
    preempting = msgspec.structs.replace(made.policies["qssf-backfill"], preemptions=3)
    made = msgspec.structs.replace(made, policies={**made.policies, "qssf-backfill": preempting})
    assert verdict_of(made).startswith("Jobs are done soonest under qssf-backfill: ")
    assert "20 % less (10 % to 30 %" in verdict_of(made)


def test_single_policy_has_no_comparison(report: EvaluationReport) -> None:
    alone = msgspec.structs.replace(report, policies={"fifo": report.policies["fifo"]}, paired={})
    assert "give another --policy to compare it with" in verdict_of(alone)
    idle = with_ratios(report, queue_mean_ratio=None)
    assert verdict_of(idle) == "No job waits under fifo: there is nothing to save here."
    bound = msgspec.structs.replace(report, paired={"sjf": report.paired["sjf"]})
    assert "the other policies use the true run times, so no broker can run them" in verdict_of(bound)
    none = msgspec.structs.replace(report.policies["fifo"], queue_mean_s=None)
    ended = msgspec.structs.replace(report, policies={**report.policies, "fifo": none})
    assert verdict_of(ended).startswith("No measured job ended under fifo")


# ---- cautions ------------------------------------------------------------------------------------


def test_load_above_1_is_warned_about_and_explained(report: EvaluationReport) -> None:
    assert report.load_frac is not None
    assert report.load_frac < 1
    assert not any("offered load" in one for one in report.cautions)
    crowded = cautions_of(msgspec.structs.replace(report, load_frac=1.13))
    assert "the offered load is 1.13: jobs ask for more GPU time than there is" in crowded[0]
    assert "every mean grows with the length of the trace" in crowded[0]
    assert crowded[1:] == report.cautions


def test_crowded_vc_is_named(report: EvaluationReport) -> None:
    trace = rs.Trace.from_columns(
        name="vcs", submit_s=[0, 100], duration_s=[300, 50], num_gpus=[1, 1], vc=["full", "free"]
    )
    own = [NodeGroup(count=1, gpus=2, vc=vc) for vc in ("full", "free")]
    spec = ClusterSpec(name="c", nodes=tuple(own))
    assert crowded_vcs(trace, spec) == {"full": 1.5}
    assert crowded_vcs(trace, ClusterSpec(name="c", nodes=(*own, NodeGroup(count=1, gpus=2)))) == {}
    (said, *_) = cautions_of(msgspec.structs.replace(report, crowded_vcs={"full": 1.5}))
    assert "(full 1.50)" in said


def test_bounds_and_unfinished_jobs_are_reported(report: EvaluationReport) -> None:
    assert any(one.startswith("sjf: fed the true run times") for one in report.cautions)
    late = msgspec.structs.replace(report.policies["fifo"], unfinished=7)
    some = msgspec.structs.replace(report, policies={**report.policies, "fifo": late})
    assert any(
        "jobs had not ended when the replay stopped (7 under fifo)" in one for one in cautions_of(some)
    )


def test_jobs_with_unmet_dependencies_are_reported(report: EvaluationReport) -> None:
    assert not any("dependency" in one for one in cautions_of(report))
    lost = msgspec.structs.replace(report.policies["fifo"], by_end={"completed": 9, "cancelled": 2})
    some = msgspec.structs.replace(report, policies={**report.policies, "fifo": lost})
    assert any("because a dependency could not be met (2 under fifo)" in one for one in cautions_of(some))


# ---- recorded schedule ---------------------------------------------------------------------------


def test_recorded_schedule_has_a_row_and_a_caution(report: EvaluationReport) -> None:
    known = report.recorded
    assert known is not None
    assert (known.jobs, known.of_jobs, known.scaled) == (400, 600, True)
    assert (known.queue_mean_s, known.queue_max_s, known.queue_p999_s) == (7_200.0, 7_200.0, 7_200.0)
    (said,) = [one for one in report.cautions if one.startswith("The row recorded ")]
    assert "known of 400 of 600 jobs" in said
    assert "the cluster here was scaled" in said
    assert "not part of the comparison" in said
    rows = [line.split() for line in str(report).splitlines() if line.strip().startswith("recorded ")]
    assert [row[:2] for row in rows] == [["recorded", "400"]]
    assert rows[0][-8:] == ["2.0", "h"] * 4


def test_recorded_jobs_are_the_replayed_ones() -> None:
    trace = rs.Trace.from_columns(
        name="t",
        submit_s=[0, 1, 2],
        duration_s=[10, 10, 10],
        num_gpus=[1, 99, 1],
        extra={"queue_s": [4, 9, 6]},
    )
    known = rs.simulate(trace, CLUSTER, ["fifo"]).compare().recorded
    assert known is not None
    assert (known.jobs, known.queue_mean_s, known.jct_mean_s, known.scaled) == (2, 5.0, 15.0, False)
    assert rs.simulate(trace, CLUSTER, ["fifo"], since_s=1.5).compare().recorded.jobs == 1
    bare = rs.Trace.from_columns(name="t", submit_s=[0], duration_s=[10], num_gpus=[1])
    assert rs.simulate(bare, CLUSTER, ["fifo"]).compare().recorded is None


# ---- tables, pages and files ---------------------------------------------------------------------


def heads_of(text: str) -> set[str]:
    """Heads of the printed tables of policies."""
    lines = [line for line in text.splitlines() if line.startswith(" policy ")]
    return {head.strip() for line in lines for head in line.split("  ")[1:] if head.strip()}


@pytest.mark.slow
def test_every_column_has_a_legend(report: EvaluationReport) -> None:
    trace, cluster = rs.synthesize("helios", jobs=60, load=1.2, gpus=16, seed=1)
    models = Models(power_down=PowerDownPlan())
    full: EvaluationReport = rs.simulate(trace, cluster, ["fifo", "gittins"], models=models).compare()
    for one in (report, full):
        text = io.StringIO()
        print_report(one, Console(file=text, width=400))
        tables, _, legend = text.getvalue().partition("Columns of the tables:\n")
        explained = {line.strip().partition(": ")[0] for line in legend.splitlines()}
        heads = {name for name in LEGEND if any(name in head for head in heads_of(tables))}
        assert heads_of(tables) <= explained
        assert heads >= explained
    assert {"saved, kWh", "lost GPU-h", "energy", "queue p99.9"} <= explained


def test_times_have_units_and_the_verdict_is_above_the_tables(report: EvaluationReport) -> None:
    text = str(report)
    assert text.index(report.verdict[:40]) < text.index("all jobs") < text.index("Columns of the tables")
    assert "seconds" not in text.partition("Columns of the tables")[0]
    (row,) = [line for line in text.splitlines() if line.startswith(" fifo ") and "%" in line][:1]
    assert " h " in row


def test_page_and_file_have_the_verdict_too(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    trace, cluster = rs.synthesize("helios", jobs=120, load=1.2, gpus=16, seed=1)
    runs = rs.simulate(trace, cluster, ["fifo", "qssf"])
    runs.to_html(tmp_path / "r.html")
    runs.to_json(tmp_path / "r.json")
    written: dict[str, Any] = json.loads((tmp_path / "r.json").read_text())
    page = unescape((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert written["verdict"] == runs.compare().verdict
    assert written["cautions"] == runs.compare().cautions
    for sentence in (written["verdict"], *written["cautions"], written["predicted_by"]):
        assert sentence in page
        assert sentence in " ".join(str(runs.compare()).split())
    assert written["predicted_by"].startswith("Predicted run times: ")
    assert page.index(written["verdict"]) < page.index("<dl")
    assert {"recorded", "fed_truth", "crowded_vcs"} <= written.keys()


def test_colours_of_gains_are_no_policy_s_and_the_caption_names_all_parts(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    trace, cluster = rs.synthesize("helios", jobs=120, load=1.2, gpus=16, seed=1)
    rs.simulate(trace, cluster, ["fifo", "qssf"]).to_html(tmp_path / "r.html")
    page = unescape((tmp_path / "r.html").read_text(encoding="utf-8"))
    gains = page[page.index('id="gains"') :]
    plot = gains[gains.index("<svg") : gains.index("</svg>")]
    assert set(re.findall(r"var\(--(c\d|better|same|worse)\)", plot)) == {"better", "same", "worse"}
    for variable in ("--better", "--same", "--worse"):
        colours = re.findall(rf"{variable}: (#[0-9a-f]{{6}})", page)
        assert len(colours) == 2, "a light page, and a dark one"
        assert not set(colours) & set(re.findall(r"--c\d: (#[0-9a-f]{6})", page))
    assert "wait less than under fifo, as long (within a second), and longer, by number of GPUs" in gains


def test_bars_of_times_are_linear_and_have_their_values() -> None:
    figures = pytest.importorskip("rlsched.report.figures")
    hours = [figures.Series("fifo", [72_000.0, 0.0]), figures.Series("tuned", [3_600.0, 90.0])]
    plot = figures.Canvas().time_bars(["1", "8"], hours, "Waits.", "GPUs").svg
    assert {"20.0 h", "1.0 h", "1.5 min", "0 s", "hours"} <= set(re.findall(r">([^<>]+)</text>", plot))
    bars = re.findall(r'<path d="([^"]*)" clip-path[^>]*fill: var\(--c\d\)', plot)
    ends = [[float(y) for y in re.findall(r"[ML] [\d.]+ ([\d.]+)", bar)] for bar in bars]
    tall, low = sorted((max(one) - min(one) for one in ends), reverse=True)[:2]
    assert tall / low == pytest.approx(20.0, rel=0.01)


# ---- progress without a terminal ---------------------------------------------------------


def test_log_has_the_first_message_at_once_and_then_periodic_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now_s = 100.0
    with Progress(clock=lambda: now_s) as shown:
        bar = shown.begin("replaying", 8)
        for done in range(8):
            shown.update(bar, done, f"{done} of 8")
            now_s += LINES_EVERY_S / 2.5
        shown.print_line("and more")
        shown.update(bar, 8)
    assert capsys.readouterr().err.splitlines() == [
        "replaying: 0 of 8",
        "replaying: 3 of 8",
        "replaying: 6 of 8",
        "and more",
    ]
    with Progress(shown=False) as shown:
        shown.update(shown.begin("replaying"), 0.5)
        shown.print_line("and more")
    with Progress(lines=False) as shown:
        shown.update(shown.begin("replaying"), 0.5)
    assert capsys.readouterr().err == ""


def test_evaluate_reports_progress(tmp_path: Path) -> None:
    trace, cluster = rs.synthesize("helios", jobs=50, load=0.9, gpus=16, seed=1)
    trace.write(tmp_path / "t.csv")
    cluster.write(tmp_path / "c.toml")
    words = ["--trace", str(tmp_path / "t.csv"), "--cluster", str(tmp_path / "c.toml"), "--policy", "fifo"]
    done = CliRunner().invoke(evaluate, words, standalone_mode=False)
    assert done.stderr.splitlines()[0] == "t: 50 jobs on 16 GPUs, under fifo"
    assert "jobs on" not in done.stdout
