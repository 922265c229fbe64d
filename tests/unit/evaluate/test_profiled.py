"""`--profiles`: jobs run as the workload nearest to the GPU time that a broker learnt."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from rlsched.broker.base.entries import Entry, PairSeen
from rlsched.broker.base.ledger_models import catalogue
from rlsched.broker.journal.journal import JOURNAL_FILE, Journal
from rlsched.broker.queries.learnt import learnt_by
from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.registry import load_scheduler
from rlsched.errors import InputError, JournalError
from rlsched.models.catalogue import load_catalogue
from rlsched.models.catalogue.table import REFERENCE_TYPE, Cell, WorkloadPair
from rlsched.models.gpu_types import GPU_FIGURES
from rlsched.models.observed import LearntPair, LearntPairs
from rlsched.wire.messages import Capabilities, RankUsage
from rlsched.workload.trace import Trace
from rlsched_agents.cli.evaluate import evaluate
from rlsched_agents.evaluate.profiled import with_profiles
from rlsched_agents.evaluate.simulate import simulate
from rlsched_envs.sim import modelling
from tests.support.broker.hand import LIMITS, ended, hello, launched, make, submit
from tests.support.broker.hand_broker import HandBroker

TRAIN, OTHER = "python train.py --seed 1", "python other.py"


def util_frac(name: str) -> float:
    """GPU time of a workload on the catalogue's reference type."""
    table = catalogue()
    return float(table.traits([REFERENCE_TYPE])[table.number(name), 0]["util_frac"])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A broker's directory; one command was measured for 100 s, at 30 % of GPU time."""
    return measured(tmp_path / "broker", RankUsage(measured_s=100, gpu_milli=300, gpu_memory_mib=4_000))


def measured(folder: Path, usage: RankUsage) -> Path:
    """A new broker's directory, in which the command has had this use on a V100."""
    folder.mkdir()
    with closing(Journal(folder / JOURNAL_FILE)) as journal:
        broker = make(journal)
        broker.says("n0", msgspec.structs.replace(hello("n0"), gpu_type="V100"))
        broker.ask(submit(1, command=TRAIN.split()))
        broker.says("n0", launched(1))
        broker.says("n0", msgspec.structs.replace(ended(1), usage=usage))
    return folder


@pytest.fixture
def trace(store: Path) -> Trace:
    """The measured command with another seed, another user's, another command, a named workload, no GPU."""
    user = next(iter(learnt_by(store).profiles.kept_profiles())).user
    plain = Trace.from_columns(
        name="w",
        submit_s=[0.0, 1.0, 2.0, 3.0, 4.0],
        duration_s=[100.0] * 5,
        num_gpus=[1.0, 1.0, 1.0, 1.0, 0.0],
        user=[user, "another user", user, user, user],
        extra={"workload": ["", "", "", "gpt2-b4", ""]},
    )
    again = TRAIN.replace("1", "2")
    commands = np.array([again, again, OTHER, again, again])
    return replace(plain, extra={**plain.extra, "x_command": commands})


def test_jobs_with_a_profile_get_the_nearest_workload(store: Path, trace: Trace) -> None:
    found, used, _ = with_profiles(trace, store)
    assert used.tolist() == [True, False, False, False, False]
    nearest = min(catalogue().names, key=lambda name: abs(util_frac(name) - 0.3))
    assert found.extra["workload"].tolist() == [nearest, "", "", "gpt2-b4", ""]
    assert trace.extra["workload"].tolist() == ["", "", "", "gpt2-b4", ""]
    assert with_profiles(trace, store / JOURNAL_FILE).used.tolist() == used.tolist()


def with_memory(store: Path, mib: int, *facts: Entry) -> Path:
    """A further store, in which the command has taken this much GPU memory on an H100."""
    folder = store.with_name(f"memory-{mib}")
    folder.mkdir()
    usage = RankUsage(measured_s=100, gpu_milli=300, gpu_memory_mib=mib)
    with closing(Journal(folder / JOURNAL_FILE)) as journal:
        broker = HandBroker(load_scheduler("pack"), journal, limits=LIMITS, shares=True)
        can = Capabilities(shares=True, gpu_memory_mib=81_559, fences=True)
        broker.says("n0", msgspec.structs.replace(hello("n0"), gpu_type="H100", capabilities=can))
        broker.ask(submit(1, command=TRAIN.split()))
        broker.says("n0", launched(1))
        broker.says("n0", msgspec.structs.replace(ended(1), usage=usage))
        journal.commit(facts, broker.now_s + 1.0)
    return folder


def six_alike(store: Path, workload: str = "") -> Trace:
    """Six jobs of the measured command, which arrive together."""
    user = next(iter(learnt_by(store).profiles.kept_profiles())).user
    plain = Trace.from_columns(
        name="w",
        submit_s=[0.0] * 6,
        duration_s=[1_000.0] * 6,
        num_gpus=[1.0] * 6,
        user=[user] * 6,
        extra={"workload": [workload] * 6},
    )
    return replace(plain, extra={**plain.extra, "x_command": np.array([TRAIN] * 6)})


def replayed(trace: Trace, profiles: Path | None = None) -> tuple[bytes, ...]:
    """Starts, ends and energy of a replay on two H100 under `pack`."""
    spec = ClusterSpec.uniform(1, 2, gpu_type="H100")
    table = simulate(trace, spec, "pack", models="default", profiles=profiles)["pack"].jobs.table
    assert table.energy is not None
    return table.start_s.tobytes(), table.end_s.tobytes(), table.energy.job_j.tobytes()


def with_catalogue(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    changed = replace(load_catalogue(), **changes)
    monkeypatch.setattr(modelling, "load_catalogue", lambda **_: changed)


def test_learnt_gpu_memory_of_any_job_is_used(store: Path, trace: Trace) -> None:
    found = with_profiles(trace, store).trace
    assert found.extra["gpu_need_mib"].tolist() == [5562, 0, 0, 5562, 0]  # 4000 MiB x e^(2.33 x .141)
    asked = {"gpu_memory_mib": np.array([6_000.0, 6_000.0, math.nan, math.nan, math.nan])}
    asked["gpu_need_mib"] = np.array([math.nan, 7_000.0, math.nan, 5_600.0, math.nan])
    found = with_profiles(replace(trace, extra={**trace.extra, **asked}), store).trace
    assert found.extra["gpu_need_mib"].tolist() == [6_000, 7_000, 0, 5_600, 0]


def test_learnt_gpu_memory_acts_as_the_same_memory_in_the_catalogue(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """80 % of a GPU's memory: no job joins another."""
    store = with_memory(store, 50_000)
    trace = six_alike(store)
    profiled = replayed(trace, store)
    found = with_profiles(trace, store).trace
    named = six_alike(store, str(found.extra["workload"][0]))
    assert replayed(named) != profiled
    key, need_mib = (named.extra["workload"][0], "H100", "memory_mib"), float(found.extra["gpu_need_mib"][0])
    with_catalogue(monkeypatch, cells={**load_catalogue().cells, key: Cell(need_mib, "measured", "broker")})
    assert replayed(named) == profiled


def test_learnt_power_and_cores_are_used_unless_the_trace_has_them(store: Path, trace: Trace) -> None:
    found = with_profiles(trace, store).trace
    assert not {"core_need", "power_ratio"} & set(found.extra)
    usage = RankUsage(measured_s=100, gpu_milli=300, cpu_milli=2_000, energy_mj=20_000_000)
    folder = measured(store.with_name("power"), usage)
    trace = replace(
        trace, extra={**trace.extra, "core_need": np.array([np.nan, np.nan, np.nan, 7.0, np.nan])}
    )
    found = with_profiles(trace, folder).trace
    assert found.extra["core_need"].tolist() == [2.5, 0.0, 0.0, 7.0, 0.0]  # 2 cores x 1.25
    watts = 200.0 - GPU_FIGURES["V100"]["static_w"].value
    names = [str(found.extra["workload"][0]), "gpt2-b4"]
    of_catalogue = [
        float(catalogue().traits(["V100"])[catalogue().number(name), 0]["dynamic_w"]) for name in names
    ]
    expected = [watts / of_catalogue[0], 0.0, 0.0, watts / of_catalogue[1], 0.0]
    assert found.extra["power_ratio"].tolist() == pytest.approx(expected)


def test_learnt_power_acts_as_the_same_power_in_the_catalogue(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = six_alike(store, "gpt2-b4")
    ratio = replace(trace, extra={**trace.extra, "power_ratio": np.full(6, 0.5)})
    learnt, named = replayed(ratio), replayed(trace)
    assert learnt[:2] == named[:2]
    assert learnt[2] != named[2]
    key = ("gpt2-b4", "H100", "dynamic_w")
    half = Cell(0.5 * load_catalogue().cells[key].value, "measured", "broker")
    with_catalogue(monkeypatch, cells={**load_catalogue().cells, key: half})
    assert replayed(trace) == learnt


def test_learnt_pairs_act_as_the_same_pairs_in_the_catalogue(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = str(with_profiles(six_alike(store), store).trace.extra["workload"][0])
    seen = PairSeen(job=9, attempt=1, gpu_type="H100", workload=name, partner=name, speed=0.62)
    store = with_memory(store, 4_000, seen)
    trace = six_alike(store)
    (pair,) = learnt_by(store).pairs
    assert (pair.workload, pair.partner, pair.kind) == (name, name, "H100")
    assert pair.speed == pytest.approx(0.62, rel=1e-6)
    profiled = replayed(trace, store)
    named = with_profiles(trace, store).trace
    assert replayed(named) != profiled
    pairs = (*load_catalogue().pairs, WorkloadPair("H100", name, name, pair.speed, pair.speed))
    with_catalogue(monkeypatch, pairs=pairs)
    assert replayed(named) == profiled


def test_pairs_of_unknown_workloads_are_left_out(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal of a later version may name workloads that this catalogue lacks."""
    pairs = [LearntPair("H100", *names, 1.0, -0.5) for names in (("gpt2-b4", "new"), ("gpt2-b4", "gpt2-b4"))]
    monkeypatch.setattr(LearntPairs, "kept", lambda _: ([], pairs))
    assert [(one.workload, one.partner) for one in learnt_by(store).pairs] == [("gpt2-b4", "gpt2-b4")]


def test_report_counts_the_measured_jobs_with_a_profile(store: Path, trace: Trace, tmp_path: Path) -> None:
    trace.write(tmp_path / "w.csv")
    ClusterSpec.uniform(1, 4, gpu_type="V100").write(tmp_path / "c.toml")
    common = ["--trace", str(tmp_path / "w.csv"), "--cluster", str(tmp_path / "c.toml"), "--policy", "fifo"]
    result = CliRunner().invoke(evaluate, [*common, "--models", "--profiles", str(store)])
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "(--profiles): 1 of 5 jobs ran as the workload nearest to their learnt GPU time." in text
    runs = simulate(trace, ClusterSpec.uniform(1, 4, gpu_type="V100"), "fifo", models="default")
    assert runs.compare().profiled is None


def test_profiles_need_models_commands_and_a_journal(store: Path, trace: Trace, tmp_path: Path) -> None:
    spec = ClusterSpec.uniform(1, 4, gpu_type="V100")
    with pytest.raises(InputError, match=r"--profiles needs models, .*: give --models"):
        simulate(trace, spec, "fifo", profiles=store)
    bare = replace(trace, extra={})
    with pytest.raises(InputError, match="no column x_command"):
        with_profiles(bare, store)
    with pytest.raises(JournalError, match="there is no journal here"):
        with_profiles(trace, tmp_path / "nothing")
