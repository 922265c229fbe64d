"""`rlsched evaluate --models`: its file, its fields and output files, and refused input."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.errors import InputError, RlschedError, UnknownPolicyError
from rlsched.power_down.plan import PowerDownPlan
from rlsched.settings import as_toml
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.jobs_out import file_stem
from rlsched_envs.sim.modelling import Models

KWH_J = 3.6e6
DEFAULTS = {
    "workload_seed": 0,
    "assumed_scale": 1.0,
    "noise": True,
    "learning": True,
    "energy_weight": 0.0,
    "power_cap_frac": 1.0,
    "sharing_mode": "time-sliced",
    "power_down": None,
    "fault_frac": Models().fault_frac,
    "pairs": [],
    "lends_cores": False,
    "node_power": msgspec.to_builtins(Models().node_power),
}
Files = tuple[Path, Path]
PAIR = {"kind": "V100", "workload": "gpt2-b4", "partner": "gpt2-b4", "speed": 0.6}


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """150 jobs in twelve days that crowd 16 V100 for hours at a time, and one without GPUs."""
    rng = np.random.default_rng(5)
    count = 150
    sizes = rng.choice([1.0, 1.0, 2.0, 4.0, 8.0], count)
    sizes[30] = 0.0
    days = rng.integers(0, 12, count) * 86400
    trace = Trace.from_columns(
        name="w",
        submit_s=np.sort(days + rng.integers(0, 7200, count)).astype(np.float64),
        duration_s=rng.integers(600, 30_000, count).astype(np.float64),
        num_gpus=sizes,
        num_cpus=np.where(sizes == 0, 4.0, np.nan),
    )
    folder = tmp_path_factory.mktemp("models")
    trace.write(folder / "w.csv")
    spec = ClusterSpec(name="v", nodes=(NodeGroup(count=2, gpus=8, gpu_type="V100", cpus=48),))
    (folder / "c.toml").write_text(spec.to_toml(), encoding="utf-8")
    return folder / "w.csv", folder / "c.toml"


def run(workload: Files, *words: str) -> Result:
    """Each word is a flag with its values, or a policy with its settings: `easy order=area`."""
    from rlsched_agents.cli import evaluate

    flags = ["--trace", str(workload[0]), "--cluster", str(workload[1])]
    for word in words:
        first, *rest = word.split(" ")
        if first.startswith("--"):
            flags += [first, *rest]
        else:
            flags += ["--policy", first, *(part for change in rest for part in ("--set", change))]
    return CliRunner().invoke(evaluate, flags)


def models_with(folder: Path, **settings: Any) -> str:
    """The flag of models with these settings."""
    path = folder / "models.toml"
    path.write_text(as_toml(settings), encoding="utf-8")
    return f"--models {path}"


def report_of(workload: Files, folder: Path, *words: str) -> Any:
    result = run(workload, *words, f"--json {folder / 'out.json'}")
    assert result.exit_code == 0, result.output + repr(result.exception)
    return json.loads((folder / "out.json").read_text(encoding="utf-8"))


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def modelled(workload: Files, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The report and the job files of four policies under models."""
    folder = tmp_path_factory.mktemp("out")
    names = ("qssf-backfill", "pack", "lucid", "qssf-backfill clock.rule=fixed clock.at=0.75")
    return report_of(workload, folder, "--models", *names, f"--jobs-out {folder}"), folder


def test_fields(modelled: tuple[Any, Path]) -> None:
    report, _ = modelled
    assert report["models"] == DEFAULTS
    assert all(one["power_down"] is None for one in report["policies"].values())
    plain, pack, lucid, slow = report["policies"].values()
    for one in report["policies"].values():
        assert one["energy_kwh"] == pytest.approx(150 * one["energy_per_job_kwh"])
        # All jobs are measured: the power of jobs plus the idle power equals the power of the cluster.
        assert one["energy_kwh"] + one["idle_energy_kwh"] == pytest.approx(one["cluster_energy_kwh"])
        assert one["replay_s"] == pytest.approx(one["makespan_s"])
        assert 0 < one["gpu_used_frac"] < one["gpu_utilisation_frac"] <= 1
        assert max(one["over_time"]["gpus_allocated"]) <= 16 + 1e-9
        pairs = zip(one["over_time"]["gpus_used"], one["over_time"]["gpus_allocated"], strict=True)
        assert all(used <= allocated + 1e-9 for used, allocated in pairs)
        assert 0.3 < one["measured_cells_frac"] < 1
        assert one["preemptions"] == 0
        assert one["lost_gpu_s"] >= 0, "rounding does not add work"
    assert plain["shared_frac"] == slow["shared_frac"] == 0
    assert 0 < pack["shared_frac"] < 1
    assert 0 < lucid["shared_frac"] < 1
    assert [one["sm_clock_mean_frac"] for one in (plain, pack, lucid)] == pytest.approx([1, 1, 1])
    assert slow["sm_clock_mean_frac"] == pytest.approx(0.75)
    assert slow["energy_kwh"] < 0.9 * plain["energy_kwh"]
    assert pack["queue_mean_s"] < plain["queue_mean_s"]
    assert lucid["lost_gpu_s"] > plain["lost_gpu_s"] == pytest.approx(0, abs=1e-3)
    ratio = report["paired"]["qssf-backfill*"]["energy_ratio"]
    assert ratio["ratio"] == pytest.approx(slow["energy_kwh"] / plain["energy_kwh"])
    assert ratio["low"] < ratio["ratio"] < ratio["high"] < 1


def test_job_files(modelled: tuple[Any, Path], workload: Files) -> None:
    report, folder = modelled
    trace = Trace.read(workload[0])
    for name in report["policies"]:
        stem = file_stem(name)
        jobs, segments = rows_of(folder / f"{stem}.csv"), rows_of(folder / f"{stem}.segments.csv")
        energy_j = {job["job_id"]: float(job["energy_j"]) for job in jobs}
        assert sum(energy_j.values()) == pytest.approx(report["policies"][name]["energy_kwh"] * KWH_J)
        for job in energy_j:
            parts = [float(row["energy_j"]) for row in segments if row["job_id"] == job]
            assert sum(parts) == pytest.approx(energy_j[job], rel=1e-7), "nine digits"
        without_gpus = jobs[30]
        assert trace.num_gpus[30] == 0
        assert (without_gpus["share"], without_gpus["sm_clock_frac"]) == ("", "")
        shares = np.array([float(job["share"]) for job in jobs if job["share"]])
        shared = np.count_nonzero(shares < 1 - 1e-6)
        assert shared == pytest.approx(report["policies"][name]["shared_frac"] * len(shares))
        assert shares.min() >= 0.5 - 1e-6
        clocks = {job["sm_clock_frac"] for job in jobs if job["sm_clock_frac"]}
        assert clocks == {"0.75" if name == "qssf-backfill*" else "1"}


def test_shared_gpus_are_counted_once(modelled: tuple[Any, Path]) -> None:
    """GPU-seconds by the second, from the job files: at most one a GPU, and equal to the report's
    utilisation.
    """
    report, folder = modelled
    rows = rows_of(folder / "pack.segments.csv")
    jobs = rows_of(folder / "pack.csv")
    first, last = (float(jobs[k]["submit_time"]) for k in (0, -1))
    taken: dict[tuple[str, str], set[int]] = {}
    for row in rows:
        if not row["gpus"]:
            continue
        seconds = range(int(float(row["start_time"])), min(int(float(row["end_time"])), int(last)))
        nodes, gpus = row["node"].split(";"), row["gpus"].split(";")
        for node, numbers in zip(nodes, gpus, strict=True):
            for part in numbers.split(","):
                low, _, high = part.partition("-")
                for gpu in range(int(low), int(high or low) + 1):
                    taken.setdefault((node, str(gpu)), set()).update(seconds)
    busy_s = sum(len(seconds) for seconds in taken.values())
    expected = report["policies"]["pack"]["gpu_utilisation_frac"]
    assert busy_s / (16 * (last - first)) == pytest.approx(expected, rel=1e-3)


def test_unused_models_change_no_times(workload: Files, tmp_path: Path) -> None:
    """Only jobs with GPUs; under models other jobs take cores that belong to GPUs."""
    trace = Trace.read(workload[0])
    trace.select(trace.num_gpus > 0).write(tmp_path / "gpus.csv")
    files = (tmp_path / "gpus.csv", workload[1])
    plain, under = (report_of(files, tmp_path, "qssf-backfill", *flags) for flags in ((), ("--models",)))
    assert plain["models"] is None
    one, other = plain["policies"]["qssf-backfill"], under["policies"]["qssf-backfill"]
    for name in ("jct_mean_s", "jct_p99_s", "queue_mean_s", "makespan_s", "gpu_utilisation_frac", "by_gpus"):
        assert one[name] == other[name]
    assert (one["energy_kwh"], one["shared_frac"], one["over_time"]["gpus_used"]) == (None, None, None)


def test_model_settings_change_the_result(
    modelled: tuple[Any, Path], workload: Files, tmp_path: Path
) -> None:
    usual = modelled[0]["policies"]["pack"]
    for kept in (
        {"assumed_scale": 1.3},
        {"workload_seed": 3},
        {"noise": False},
        {"power_cap_frac": 0.5},
    ):
        report = report_of(workload, tmp_path, "pack", models_with(tmp_path, **kept))
        assert report["models"] == DEFAULTS | kept
        assert report["policies"]["pack"]["energy_kwh"] != usual["energy_kwh"]


@pytest.mark.slow
def test_under_mps_a_failed_job_ends_its_neighbours(workload: Files, tmp_path: Path) -> None:
    trace = Trace.read(workload[0])
    failing = np.where(np.arange(len(trace)) % 2, "", "60;120;180")
    (tmp_path / "t").mkdir()
    replace(trace, extra={**trace.extra, "fail_after_s": failing}).write(tmp_path / "t" / "failing.csv")
    files = (tmp_path / "t" / "failing.csv", workload[1])
    reasons = {}
    for mode in ("time-sliced", "mps"):
        out = tmp_path / mode
        models = models_with(tmp_path, sharing_mode=mode)
        report = report_of(files, tmp_path, "pack", models, f"--jobs-out {out}")
        assert report["models"]["sharing_mode"] == mode
        reasons[mode] = (out / "pack.segments.csv").read_text().count("neighbour_fault")
    assert reasons["time-sliced"] == 0
    assert reasons["mps"] > 0


def test_energy_weight_reaches_a_policy(
    workload: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlsched.cluster.state import ClusterState

    seen: list[float] = []
    weigh = ClusterState.weigh_energy
    monkeypatch.setattr(
        ClusterState, "weigh_energy", lambda state, weight: seen.append(weight) or weigh(state, weight)
    )
    assert run(workload, "fifo", models_with(tmp_path, energy_weight=0.25)).exit_code == 0
    assert seen
    assert set(seen) == {0.25}


def test_learning_can_be_left_out(workload: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlsched_envs.sim import engine

    seen: list[float] = []
    open_books = engine.open_books

    def opened(arrays: Any, *rest: Any) -> None:
        open_books(arrays, *rest)
        seen.append(float(arrays.progress.books.learns[0]))

    monkeypatch.setattr(engine, "open_books", opened)
    for settings, learns in (({}, 1.0), ({"learning": False}, 0.0), ({"noise": False}, 0.0)):
        seen.clear()
        report = report_of(workload, tmp_path, "fifo", models_with(tmp_path, **settings))
        assert set(seen) == {learns}
        assert report["models"]["learning"] == ("learning" not in settings)


@pytest.mark.slow
def test_models_are_passed_to_other_processes(workload: Files, tmp_path: Path) -> None:
    """Policies other than compiled rules run in parallel, in separate processes."""
    words = ("random", models_with(tmp_path, assumed_scale=0.7), "--seed 1 --seed 2")
    here, beside = (report_of(workload, tmp_path, *words, f"--workers {n}") for n in (1, 2))
    one, other = here["policies"]["random"], beside["policies"]["random"]
    for field in ("jct_mean_s", "energy_kwh", "cluster_energy_kwh", "gpu_used_frac", "measured_cells_frac"):
        assert one[field] == other[field]
    assert one["energy_kwh"] > 0


def test_table_shows_power_and_its_assumptions(workload: Files, tmp_path: Path) -> None:
    models = models_with(tmp_path, assumed_scale=0.7)
    words = " ".join(run(workload, "qssf-backfill", "pack", models).output.split())
    assert "energy of the measured jobs" in words
    assert "of the catalogue's figures that these results use" in words
    assert "Models: workloads drawn with seed 0, assumed figures x 0.7. energy" in words
    assert "mean queue mean JCT energy waits less longer" in words
    assert "energy" not in run(workload, "qssf-backfill", "fifo").output


def test_shown_settings_are_the_changed_ones() -> None:
    assert Models(workload_seed=3).in_words == "workloads drawn with seed 3"
    all_of_them = Models(
        assumed_scale=1.3,
        noise=False,
        learning=False,
        energy_weight=0.25,
        power_cap_frac=0.6,
        sharing_mode="mps",
        power_down=PowerDownPlan(buffer_nodes=10),
        lends_cores=True,
    )
    words = all_of_them.in_words.split(", ")
    assert words == [
        "workloads drawn with seed 0",
        "assumed figures x 1.3",
        "pairs without scatter",
        "nothing learnt of pairs",
        "energy weighs 0.25",
        "power capped at 60% of each board's limit",
        "GPUs shared under MPS",
        "idle nodes sleep",
        "CPU cores lent as in a broker",
    ]


@pytest.mark.slow
def test_sleeping_nodes(modelled: tuple[Any, Path], workload: Files, tmp_path: Path) -> None:
    """The crowded hours of twelve days need both nodes; in between they sleep."""
    rest = {"forecast": "trailing", "headroom_nodes": 0, "review": "1m", "slot": "10m"}
    rest |= {"falling": "1h", "idle": "0s"}
    plan = {"over": "30m", "buffer_nodes": 0, "wake_buffer_nodes": 0, "ramp_nodes": 0}
    models = models_with(tmp_path, power_down=plan)
    report = report_of(workload, tmp_path, "qssf-backfill", "pack", models)
    assert report["models"]["power_down"] == rest | plan
    for name, one in report["policies"].items():
        slept, usual = one["power_down"], modelled[0]["policies"][name]
        assert 1 <= slept["wake_up_events"] <= slept["nodes_booted"]
        assert slept["wake_ups_a_day"] == pytest.approx(slept["wake_up_events"] * 86400 / one["replay_s"])
        assert 0 < slept["asleep_node_h"] < 2 * one["replay_s"] / 3600
        assert one["energy_kwh"] + one["idle_energy_kwh"] == pytest.approx(one["cluster_energy_kwh"])
        assert one["cluster_energy_kwh"] < 0.9 * usual["cluster_energy_kwh"]
        assert one["queue_mean_s"] != usual["queue_mean_s"], (
            "jobs that wait for a node let others start first"
        )
        assert one["unfinished"] == 0
    text = " ".join(run(workload, "qssf-backfill", models).output.split())
    assert "nodes that sleep, over the whole replay" in text
    assert "wake-ups a day nodes booted node-hours asleep saved, kWh" in text


def test_sleeping_nodes_exclude_node_failures(workload: Files, tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("time,node,event\n100,n0,down\n200,n0,up\n", encoding="utf-8")
    spec = ClusterSpec.read(workload[1])
    failing = msgspec.structs.replace(spec, node_events=str(tmp_path / "events.csv"))
    (tmp_path / "c.toml").write_text(failing.to_toml(), encoding="utf-8")
    result = run((workload[0], tmp_path / "c.toml"), "fifo", models_with(tmp_path, power_down={}))
    assert isinstance(result.exception, InputError)
    assert "leave out the node events" in str(result.exception)


def test_workload_outside_the_catalogue(workload: Files, tmp_path: Path) -> None:
    trace = Trace.read(workload[0])
    lines = (workload[0]).read_text(encoding="utf-8").splitlines()
    named = [lines[0] + ",workload", *(line + ",resnet50-imagenet-b64" for line in lines[1:])]
    (tmp_path / "named.csv").write_text("\n".join(named) + "\n", encoding="utf-8")
    files = (tmp_path / "named.csv", workload[1])
    assert report_of(files, tmp_path, "fifo", "--models")["policies"]["fifo"]["jobs"] == len(trace)
    (tmp_path / "named.csv").write_text("\n".join(named).replace("resnet50", "resnet51") + "\n")
    result = run(files, "fifo", "--models")
    assert isinstance(result.exception, InputError)
    assert "column workload" in str(result.exception)


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (("pack",), InputError, "policy 'pack' shares GPUs, sets clocks or moves cores: that needs models"),
        (("lucid",), InputError, "add --models"),
        (("fifo", "fifo clock.rule=fixed clock.at=0.75"), InputError, "policy 'fifo*' shares GPUs"),
        (("fifo cores=true",), InputError, "add --models"),
        (("fifo share.max_jobs=5",), InputError, "share.max_jobs: expected 2 to 4 jobs, got 5"),
        (("fifo fly=true",), InputError, "unknown setting 'fly'"),
        (("fifo clock.rule=fixed clock.at=2",), InputError, "clock.at: expected a clock from 0.5 to 1"),
        (("fifo clock.slowdown=0.1",), InputError, "clock: object missing required field `rule`"),
        (("tiresias share={}",), InputError, "share does not work with preempt.by quota"),
        (("random cores=true",), InputError, "cores: 'random' does not read this setting"),
        (("pack share.min_speed=2",), InputError, "share.min_speed: expected a speed from 0 to 1"),
        (("lucid profile.run=soon",), InputError, "expected a time such as 90s"),
        (("fifo+fly",), UnknownPolicyError, "unknown policy 'fifo+fly'; did you mean 'fifo'?"),
    ],
)
def test_bad_options_are_refused_before_the_run(
    workload: Files,
    tmp_path: Path,
    words: tuple[str, ...],
    error: type[RlschedError],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_refused(workload, tmp_path, words, error, message, monkeypatch)
    if not message.endswith(("add --models", "needs models", "shares GPUs")):
        check_refused(workload, tmp_path, (*words, "--models"), error, message, monkeypatch)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"energy_weight": 2}, "energy_weight: expected a number from 0 to 1, got 2"),
        ({"power_cap_frac": 0}, "power_cap_frac: expected a part of the board's limit, up to 1"),
        ({"power_down": "often"}, "power_down: expected"),
        ({"power_down": {"over": "25m"}}, "power_down: over: expected a multiple of slot (10m)"),
        ({"sharing_mode": "both"}, "sharing_mode: "),
        (
            {"pairs": [PAIR | {"speed": 2.0}]},
            "pairs[0]: speed: expected a number above 0, up to 1, got 2",
        ),
        ({"pairs": [PAIR, PAIR | {"workload": "gpt2"}]}, "pairs[1]: workload: expected a workload of "),
        (
            {"pairs": [PAIR | {"partner": ""}]},
            "pairs[0]: partner: expected a workload of the catalogue",
        ),
        ({"pairs": [PAIR | {"speeds": 1.0}]}, "unknown setting 'pairs[0].speeds'; did you mean 'speed'?"),
        ({"pairs": [{"kind": "H100"}]}, "pairs[0]: object missing required field `workload`"),
        ({"assumed_scale": 0}, "assumed_scale: expected a number above 0"),
        ({"assumed_scale": math.nan}, "assumed_scale: expected a number above 0"),
        ({"assumed_scales": 1}, "unknown setting 'assumed_scales'; did you mean 'assumed_scale'?"),
    ],
)
def test_invalid_models_are_refused(
    workload: Files,
    tmp_path: Path,
    settings: dict[str, Any],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flag = models_with(tmp_path, **settings)
    check_refused(workload, tmp_path, ("fifo", flag), InputError, message, monkeypatch)


def check_refused(
    workload: Files,
    folder: Path,
    words: tuple[str, ...],
    error: type[RlschedError],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line reports it; no input was read and no output written."""
    monkeypatch.setattr(Trace, "read", lambda path: pytest.fail(f"{path} was read"))
    result = run(workload, *words, f"--json {folder / 'out.json'}")
    assert isinstance(result.exception, error), result.output
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)
    assert not (folder / "out.json").exists()
