"""`--profiles`: jobs run as the workload nearest to the GPU time that a broker learnt."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from rlsched.broker.base.ledger_models import catalogue
from rlsched.broker.journal.journal import JOURNAL_FILE, Journal
from rlsched.broker.queries.learnt import learnt_profiles
from rlsched.cluster.spec import ClusterSpec
from rlsched.errors import InputError, JournalError
from rlsched.models.catalogue.table import REFERENCE_TYPE
from rlsched.wire.messages import RankUsage
from rlsched.workload.trace import Trace
from rlsched_agents.cli.evaluate import evaluate
from rlsched_agents.evaluate.profiled import with_profiles
from rlsched_agents.evaluate.simulate import simulate
from tests.support.broker.hand import ended, hello, launched, make, submit

TRAIN, OTHER = "python train.py --seed 1", "python other.py"


def util_frac(name: str) -> float:
    """GPU time of a workload on the catalogue's reference type."""
    table = catalogue()
    return float(table.traits([REFERENCE_TYPE])[table.number(name), 0]["util_frac"])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A broker's directory; one command was measured for 100 s, at 30 % of GPU time."""
    folder = tmp_path / "broker"
    folder.mkdir()
    usage = RankUsage(measured_s=100, gpu_milli=300, gpu_memory_mib=4_000)
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
    user = next(iter(learnt_profiles(store).kept_profiles())).user
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
    found, used = with_profiles(trace, store)
    assert used.tolist() == [True, False, False, False, False]
    nearest = min(catalogue().names, key=lambda name: abs(util_frac(name) - 0.3))
    assert found.extra["workload"].tolist() == [nearest, "", "", "gpt2-b4", ""]
    assert trace.extra["workload"].tolist() == ["", "", "", "gpt2-b4", ""]
    assert with_profiles(trace, store / JOURNAL_FILE)[1].tolist() == used.tolist()


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
    with pytest.raises(InputError, match=r"--profiles changes the workloads of models, .*: give --models"):
        simulate(trace, spec, "fifo", profiles=store)
    bare = replace(trace, extra={})
    with pytest.raises(InputError, match="no column x_command"):
        with_profiles(bare, store)
    with pytest.raises(JournalError, match="there is no journal here"):
        with_profiles(trace, tmp_path / "nothing")
