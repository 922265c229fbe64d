"""Promises of `rlsched evaluate`: its flags, every field of its JSON file, the files of --jobs-out."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decisions.reading import read_records
from rlsched.errors import ClusterSpecError, InputError, UnknownPolicyError
from rlsched.installing import install_command
from rlsched.workload.trace import Trace

CONTRACT_FIELDS = (
    "jobs rejected unfinished jct_mean_s jct_p50_s jct_p99_s jct_p999_s queue_mean_s queue_p50_s queue_p99_s "
    "queue_p999_s queue_max_s makespan_s gpu_utilisation_frac energy_kwh preemptions decisions "
    "decision_p99_us wall_s by_gpus by_vc"
)
LATER_FIELDS = (
    "by_source jct_p90_s queue_p90_s bounded_slowdown_mean bounded_slowdown_p99 lost_gpu_s migrations "
    "decision_p50_us gpu_used_frac fragmentation_frac over_time by_end"
)
MODEL_FIELDS = (
    "energy_per_job_kwh cluster_energy_kwh idle_energy_kwh replay_s shared_frac sm_clock_mean_frac "
    "measured_cells_frac power_down"
)
LAST_FIELDS = "floor_mean_s delay_mean_s peak_kw power_limit cost carbon_kg energy_by_hour_kwh by_hour"
JOB_COLUMNS = "job_id submit_time start_time end_time node gpus share sm_clock_frac energy_j cost carbon_kg"
TOP_FIELDS = "trace cluster nodes gpus load_frac seeds policies settings"


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """120 jobs in two weeks on two VCs, and one gang that fits nowhere."""
    rng = np.random.default_rng(3)
    count = 120
    sizes = rng.choice([1.0, 2.0, 4.0, 8.0], count, p=[0.5, 0.2, 0.2, 0.1])
    sizes[60] = 64.0
    trace = Trace.from_columns(
        name="w",
        submit_s=np.sort(rng.integers(0, 14 * 86400, count)).astype(np.float64),
        duration_s=rng.integers(60, 100_000, count).astype(np.float64),
        num_gpus=sizes,
        vc=rng.choice(["a", "b"], count),
    )
    folder = tmp_path_factory.mktemp("workload")
    trace.write(folder / "w.csv")
    spec = ClusterSpec(name="two", nodes=tuple(NodeGroup(count=1, gpus=8, vc=vc) for vc in ("a", "b")))
    (folder / "c.toml").write_text(spec.to_toml(), encoding="utf-8")
    return folder / "w.csv", folder / "c.toml"


def run(workload: tuple[Path, Path], *arguments: str) -> Result:
    from rlsched_agents.cli import evaluate

    trace, cluster = (str(path) for path in workload)
    return CliRunner().invoke(evaluate, ["--trace", trace, "--cluster", cluster, *arguments])


def report_of(workload: tuple[Path, Path], folder: Path, *arguments: str) -> Any:
    result = run(workload, *arguments, "--json", str(folder / "out.json"))
    assert result.exit_code == 0, result.output + repr(result.exception)
    return json.loads((folder / "out.json").read_text(encoding="utf-8"))


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_field_is_in_the_report(workload: tuple[Path, Path], tmp_path: Path) -> None:
    report = report_of(workload, tmp_path, "--policy", "fifo-backfill", "--policy", "random")
    assert set(TOP_FIELDS.split()) <= set(report)
    assert list(report["policies"]) == ["fifo-backfill", "random"]
    assert (report["nodes"], report["gpus"], report["seeds"]) == (2, 16, [0])
    for one in report["policies"].values():
        assert list(one)[: len(CONTRACT_FIELDS.split())] == CONTRACT_FIELDS.split()
        later = f"{LATER_FIELDS} {MODEL_FIELDS} {LAST_FIELDS}"
        assert list(one)[len(CONTRACT_FIELDS.split()) :] == later.split()
        assert all(one[name] is None for name in MODEL_FIELDS.split()), "no models, no figure"
        assert one["energy_kwh"] is None
        assert one["gpu_used_frac"] is None
        assert one["over_time"]["gpus_used"] is None
        assert (one["preemptions"], one["migrations"], one["lost_gpu_s"]) == (0, 0, 0)
        assert one["by_end"] == {"completed": 119, "timeout": 0, "failed": 0, "cancelled": 0}
        assert (one["jobs"], one["rejected"], one["unfinished"]) == (120, 1, 0)
        assert sum(group["jobs"] for group in one["by_vc"].values()) == 120
        assert set(one["by_gpus"]) == {"1", "2", "4", "8", "64"}
        assert 0 < one["gpu_utilisation_frac"] <= 1
        check_orders(one)
        numbers = [value for value in one.values() if isinstance(value, (int, float))]
        assert all(map(math.isfinite, numbers))
    assert report["policies"]["fifo-backfill"]["decision_p99_us"] is None
    assert report["policies"]["fifo-backfill"]["decision_p50_us"] is None
    timed = report["policies"]["random"]
    assert 0 < timed["decision_p50_us"] <= timed["decision_p99_us"]
    assert report["paired"]["random"]["blocks"] == 14
    assert report["paired"]["random"]["jct_mean_ratio"]["low"] > 0


def check_orders(one: dict[str, Any]) -> None:
    """Relations between the fields of one policy."""
    for group in (one, *one["by_gpus"].values(), *one["by_vc"].values()):
        if group["jct_mean_s"] is None:
            continue
        for what in ("jct", "queue"):
            percentiles = [group[f"{what}_{percent}_s"] for percent in ("p50", "p90", "p99", "p999")]
            assert percentiles == sorted(percentiles)
        assert group["queue_p999_s"] <= group["queue_max_s"]
        assert group["bounded_slowdown_mean"] >= 1
        assert group["bounded_slowdown_p99"] >= 1
    assert one["floor_mean_s"] + one["delay_mean_s"] == pytest.approx(one["jct_mean_s"])
    assert one["queue_max_s"] == max(group["queue_max_s"] or 0 for group in one["by_gpus"].values())
    steps, last = one["over_time"], one["over_time"]["to_s"]
    edges_s = np.append(np.arange(steps["from_s"], last, steps["step_s"]), last)
    allocated = np.average(steps["gpus_allocated"], weights=np.diff(edges_s))
    assert allocated / 16 == pytest.approx(one["gpu_utilisation_frac"])
    assert 0 < one["fragmentation_frac"] < 1
    assert one["by_gpus"]["1"]["fragmentation_frac"] == 0 < one["by_gpus"]["8"]["fragmentation_frac"]


@pytest.mark.parametrize("days", [9, 11])
def test_no_interval_below_ten_days(workload: tuple[Path, Path], tmp_path: Path, days: int) -> None:
    window = ("--policy", "fifo", "--policy", "qssf-backfill", "--until", str(days * 86400))
    ratio = report_of(workload, tmp_path, *window)["paired"]["qssf-backfill"]["jct_mean_ratio"]
    assert ratio["ratio"] > 0
    assert (ratio["low"] is None, ratio["high"] is None) == (days < 10, days < 10)
    words = " ".join(run(workload, *window).output.split())
    assert (f"no intervals: {days} days of submissions, 10 needed" in words) == (days < 10)
    assert ("95 % intervals" in words) == (days >= 10)


def test_job_files(workload: tuple[Path, Path], tmp_path: Path) -> None:
    report = report_of(
        workload,
        tmp_path,
        "--policy",
        "qssf-backfill",
        "--policy",
        "random",
        "--jobs-out",
        str(tmp_path / "jobs"),
    )
    assert {path.name for path in (tmp_path / "jobs").iterdir()} == {
        "qssf-backfill.csv",
        "qssf-backfill.segments.csv",
        "random.csv",
        "random.segments.csv",
    }
    jobs = rows_of(tmp_path / "jobs" / "qssf-backfill.csv")
    assert list(jobs[0]) == JOB_COLUMNS.split()
    assert len(jobs) == 120
    started = [job for job in jobs if job["start_time"]]
    assert len(started) == 119
    waits = [float(job["start_time"]) - float(job["submit_time"]) for job in started]
    assert np.mean(waits) == pytest.approx(report["policies"]["qssf-backfill"]["queue_mean_s"])
    assert all(job["energy_j"] == "" for job in jobs)
    assert len(rows_of(tmp_path / "jobs" / "qssf-backfill.segments.csv")) == 119


def test_records_hold_every_decision(workload: tuple[Path, Path], tmp_path: Path) -> None:
    report = report_of(
        workload,
        tmp_path,
        "--policy",
        "fifo",
        "--policy",
        "random",
        "--workers",
        "1",
        "--records",
        str(tmp_path / "records"),
        "--logdir",
        str(tmp_path / "log"),
    )
    for name in ("fifo", "random"):
        records = read_records(tmp_path / "records" / name)
        assert len(records) == report["policies"][name]["decisions"]
    from rlsched.board.reader import read_runs

    counts = read_runs(tmp_path / "log")["random"].scalars["decisions/source_rule_count"]
    assert sum(value for _, value in counts) == report["policies"]["random"]["decisions"]


def test_log_folder_keeps_the_records_next_to_the_event_file(
    workload: tuple[Path, Path], tmp_path: Path
) -> None:
    report = report_of(workload, tmp_path, "--policy", "random", "--logdir", str(tmp_path / "log"))
    records = read_records(tmp_path / "log" / "random")
    assert len(records) == report["policies"]["random"]["decisions"]
    assert list((tmp_path / "log" / "random").glob("events.out.tfevents.*"))


def test_records_change_no_number(workload: tuple[Path, Path], tmp_path: Path) -> None:
    plain = report_of(workload, tmp_path, "--policy", "qssf")
    recorded = report_of(workload, tmp_path, "--policy", "qssf", "--records", str(tmp_path / "records"))
    for name in ("queue_mean_s", "jct_p99_s", "by_vc", "gpu_utilisation_frac"):
        assert plain["policies"]["qssf"][name] == recorded["policies"]["qssf"][name]


def test_window_measures_only_its_jobs_after_a_warm_up(workload: tuple[Path, Path], tmp_path: Path) -> None:
    since, until = 8 * 86400, 11 * 86400
    trace = Trace.read(workload[0])
    inside = (trace.submit_s >= since) & (trace.submit_s < until)
    report = report_of(
        workload,
        tmp_path,
        "--policy",
        "fifo",
        "--since",
        str(since),
        "--until",
        str(until),
        "--jobs-out",
        str(tmp_path),
    )
    assert report["policies"]["fifo"]["jobs"] == np.count_nonzero(inside)
    assert (report["since_s"], report["until_s"]) == (since, until)
    # FIFO reads only the queue: replaying all jobs submitted since day 1 gives the same starts.
    late = trace.select(trace.submit_s >= since - 7 * 86400)
    late.write(tmp_path / "late.csv")
    report_of(
        (tmp_path / "late.csv", workload[1]),
        tmp_path,
        "--policy",
        "fifo",
        "--jobs-out",
        str(tmp_path / "all"),
    )
    start_of = {job["job_id"]: job["start_time"] for job in rows_of(tmp_path / "all" / "fifo.csv")}
    jobs = rows_of(tmp_path / "fifo.csv")
    assert [job["job_id"] for job in jobs] == trace.job_id[inside].tolist()
    assert {job["job_id"]: job["start_time"] for job in jobs}.items() <= start_of.items()


def test_seeds_are_averaged_and_rules_run_once(workload: tuple[Path, Path], tmp_path: Path) -> None:
    def with_seeds(*seeds: str) -> dict[str, Any]:
        flags = [flag for seed in seeds for flag in ("--seed", seed)]
        found: dict[str, Any] = report_of(
            workload,
            tmp_path,
            "--policy",
            "random",
            "--policy",
            "fifo",
            *flags,
            "--workers",
            "1",
            "--jobs-out",
            str(tmp_path / "-".join(seeds)),
        )
        return found

    one, two, both = with_seeds("1"), with_seeds("2"), with_seeds("1", "2")
    waits = [report["policies"]["random"]["queue_mean_s"] for report in (one, two, both)]
    assert waits[0] != waits[1]
    assert waits[2] == pytest.approx((waits[0] + waits[1]) / 2)
    assert both["seeds"] == [1, 2]
    assert {path.stem for path in (tmp_path / "1-2").iterdir()} == {
        "random",
        "random.segments",
        "random.seed2",
        "random.seed2.segments",
        "fifo",
        "fifo.segments",
    }


@pytest.mark.slow
def test_processes_give_the_same_numbers(workload: tuple[Path, Path], tmp_path: Path) -> None:
    policies = ("--policy", "random", "--policy", "ppo")
    alone = report_of(workload, tmp_path, *policies, "--workers", "1")
    beside = report_of(workload, tmp_path, *policies, "--workers", "2")
    for name in alone["policies"]:
        assert alone["policies"][name]["queue_mean_s"] == beside["policies"][name]["queue_mean_s"]


def test_baseline_and_load(workload: tuple[Path, Path], tmp_path: Path) -> None:
    report = report_of(
        workload, tmp_path, "--policy", "fifo", "--policy", "qssf", "--baseline", "qssf", "--load", "0.5"
    )
    assert list(report["paired"]) == ["fifo"]
    assert report["baseline"] == "qssf"
    assert abs(report["load_frac"] - 0.5) < 0.25


def test_table_is_readable(workload: tuple[Path, Path]) -> None:
    result = run(workload, "--policy", "fifo", "--policy", "qssf-backfill")
    assert result.exit_code == 0
    for expected in (
        "mean queueing delay by GPUs",
        "longest queueing delay by GPUs",
        "unusable",
        "mean queueing delay by VC",
        "ratios to fifo",
        "95 %",
    ):
        assert expected in result.output
    assert "1 rejected: gang of 64 GPUs" in " ".join(result.output.split())


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_table_cuts_no_number_in_a_narrow_terminal(
    workload: tuple[Path, Path], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = run(workload, "--policy", "fifo", "--policy", "qssf-backfill", "--policy", "random")
    assert "random" in result.stdout
    assert "\N{HORIZONTAL ELLIPSIS}" not in result.stdout
    assert ("p99.9" in result.stdout) == (width == 200)
    assert ("a wider terminal shows more" in result.stdout) == (width < 200)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["--policy", "nosuch"], UnknownPolicyError, "fifo-backfill"),
        (["--policy", "fifo", "--nodes", "2", "--load", "1"], InputError, "got both"),
        (["--policy", "fifo", "--since", "9", "--until", "8"], InputError, "since below"),
        (["--policy", "fifo", "--baseline", "qssf"], InputError, "not among"),
        (["--policy", "ppo", "--set", "share.max_jobs"], InputError, "expected PATH=VALUE"),
        (["--set", "order=area", "--policy", "ppo"], SystemExit, "expected a --policy before it"),
    ],
)
def test_bad_input(
    workload: tuple[Path, Path], arguments: list[str], error: type[Exception], message: str
) -> None:
    result = run(workload, *arguments)
    assert isinstance(result.exception, error)
    assert message in str(result.exception) + result.output


@pytest.mark.parametrize("verb", ["evaluate", "train"])
def test_missing_ray_names_its_extra(
    workload: tuple[Path, Path],
    verb: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from rlsched.cli.main import run as command

    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("evaluate.ray_sweep", "dials.ray_windows", "workers.ray_cluster"):
        monkeypatch.delitem(sys.modules, f"rlsched_agents.{name}", raising=False)
    trace, cluster = (str(path) for path in workload)
    out = ["--out", str(tmp_path / "mine")] if verb == "train" else []
    code = command(
        [verb, "--trace", trace, "--cluster", cluster, "--policy", "tuned", "--ray", "local", *out]
    )
    assert (code, capsys.readouterr().err) == (
        2,
        f"error: {verb} needs ray, which is not installed; run: {install_command('ray')}\n",
    )


FATES = """\
job_id,submit_time,duration,num_gpus,time_limit,fail_after_s,depends_on,array_id,array_limit,restart_s
a,0,100,4,,30,,,,10
b,0,50,4,40,,,x,1,
c,0,50,4,,,,x,1,
d,10,5,4,,,a;b,,,
e,20,5,9,,,,,,
f,30,5,1,,,e,,,
"""
"""Two nodes of 4 GPUs: a fails at 30; b is killed at 40, and only then c is eligible; f waits for e."""


@pytest.mark.slow
def test_job_events_are_reported(workload: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(FATES)
    spec = msgspec.structs.replace(ClusterSpec.uniform(2, 4), max_retries=1, node_events="events.csv")
    (tmp_path / "c.toml").write_text(spec.to_toml())
    (tmp_path / "events.csv").write_text("time,node,event\n70,n1,down\n80,n1,up\n")
    files = tmp_path / "t.csv", tmp_path / "c.toml"
    report = report_of(files, tmp_path, "--policy", "fifo", "--jobs-out", str(tmp_path / "jobs"))
    one = report["policies"]["fifo"]
    assert one["by_end"] == {"completed": 3, "timeout": 1, "failed": 0, "cancelled": 0}
    assert (one["jobs"], one["rejected"], one["unfinished"], one["preemptions"]) == (6, 2, 0, 0)
    assert report["rejected_reasons"] == {
        "gang of 9 GPUs is larger than the cluster holds": 1,
        "depends on job e, which can never run": 1,
    }
    with (tmp_path / "jobs" / "fifo.segments.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    rows = [(row["job_id"], row["start_time"], row["end_time"], row["reason"]) for row in found]
    assert rows == [
        ("a", "0", "30", "failed"),
        ("a", "30", "140", "ended"),
        ("b", "0", "40", "timeout"),
        ("c", "40", "70", "node_failure"),
        ("c", "80", "170", "ended"),
        ("d", "140", "145", "ended"),
    ]
    assert one["lost_gpu_s"] == 4 * (30 + 10 + 30 + 40)
    assert one["queue_mean_s"] == 0.0
    title = "interrupted work, and jobs that did not finish"
    assert title in run(files, "--policy", "fifo").output
    assert title not in run(workload, "--policy", "fifo").output


def test_invalid_file_of_node_events_is_an_error(workload: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("time,node,event\n70,n9,down\n")
    spec = msgspec.structs.replace(ClusterSpec.read(workload[1]), node_events="events.csv")
    (tmp_path / "c.toml").write_text(spec.to_toml(), encoding="utf-8")
    result = run((workload[0], tmp_path / "c.toml"), "--policy", "fifo")
    assert isinstance(result.exception, InputError)
    assert "events.csv: row 2, column 'node': expected a node of the cluster, n0 to n1" in str(
        result.exception
    )


def test_placement_rule_is_the_same_for_all_policies(tmp_path: Path) -> None:
    """Spread puts the second job on the other node; the names are the placement rules of the cluster."""
    from rlsched.cluster.arrays import PLACEMENT_CODES

    trace = Trace.from_columns(
        name="s",
        submit_s=[0, 0, 1, 1],
        duration_s=[9, 9, 5, 5],
        num_gpus=[1, 1, 0.25, 0],
        num_cpus=[1, 1, 1, 2],
    )
    trace.write(tmp_path / "s.csv")
    nodes, places = (NodeGroup(count=2, gpus=4, cpus=8),), {}
    for rule in PLACEMENT_CODES:
        spec = ClusterSpec(name="two", placement=rule, nodes=nodes)
        (tmp_path / "c.toml").write_text(spec.to_toml(), encoding="utf-8")
        policies = ["--policy", "fifo", "--policy", "random"]
        result = run((tmp_path / "s.csv", tmp_path / "c.toml"), *policies, "--jobs-out", str(tmp_path / rule))
        assert result.exit_code == 0, result.output
        for name in ("fifo", "random"):
            with (tmp_path / rule / f"{name}.csv").open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
            assert [row["share"] for row in rows] == ["1", "1", "0.25", ""]
            assert (rows[3]["node"], rows[3]["gpus"]) == ("", "")
            assert name == "random" or rows[3]["start_time"] == "1"
            places[rule, name] = sorted(row["node"] for row in rows[:2])
    for name in ("fifo", "random"):
        assert places["consolidate", name] == ["n0", "n0"]
        assert places["spread", name] == ["n0", "n1"]
    (tmp_path / "c.toml").write_text(spec.to_toml().replace(rule, "tetris"), encoding="utf-8")
    refused = run((tmp_path / "s.csv", tmp_path / "c.toml"), "--policy", "fifo")
    assert isinstance(refused.exception, ClusterSpecError)
    assert "placement" in str(refused.exception)
    assert "tetris" in str(refused.exception)


@pytest.mark.slow
def test_table_explains_policies_that_preempt(workload: tuple[Path, Path]) -> None:
    says = "compare policies that preempt by JCT"
    assert says not in run(workload, "--policy", "fifo").output
    sooner = ("--set", "preempt.threshold_gpu_s=1000")
    assert says in run(workload, "--policy", "fifo", "--policy", "tiresias", *sooner).output
