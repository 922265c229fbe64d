"""Predictions that start with earlier jobs: the predictor reads output of sacct before the journal."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rlsched.broker.base.past_jobs import PastJobs
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.snapshots import made_for
from rlsched.broker.standby.warm import Warm
from rlsched.broker.state.predictions import Predictions
from rlsched.cli.main import run
from rlsched.decide.registry import load_scheduler
from rlsched.errors import InputError
from rlsched.workload.predict.kinds import HEDGE, RUNNING_MEAN
from tests.support.broker.hand import draft

SACCT = "JobID|JobName|User|Partition|State|Submit|Start|End|AllocTRES\n"
START_S = 1_700_000_000


def sacct(path: Path, jobs: int = 60) -> Path:
    """Jobs of ann that ran ten minutes, and of bob that ran ten hours, each after a wait of a minute."""
    rows = []
    for k in range(jobs):
        user, run_s, gpus = (("ann", 600, 1), ("bob", 36_000, 2))[k % 2]
        submit_s = START_S + 1000 * k
        times = f"{submit_s}|{submit_s + 60}|{submit_s + 60 + run_s}"
        rows.append(f"{k}|job|{user}|gpu|COMPLETED|{times}|gres/gpu={gpus}\n")
    path.write_text(SACCT + "".join(rows))
    return path


def predicted_s(predictions: Predictions, user: str, gpus: int) -> float:
    now_s = START_S + 200_000.0
    asked = msgspec.structs.replace(draft(), user=user, name="job", vc="gpu", num_gpus=gpus)
    return predictions.predict([asked], now_s)[0].predicted_s


@pytest.mark.parametrize("kind", [RUNNING_MEAN, HEDGE])
def test_first_predictions_use_the_history(tmp_path: Path, kind: str) -> None:
    if kind == HEDGE:
        pytest.importorskip("sklearn")
    past = PastJobs.read(sacct(tmp_path / "jobs.txt"))
    assert 300 < predicted_s(Predictions(kind, past), "ann", 1) < 1200
    assert 18_000 < predicted_s(Predictions(kind, past), "bob", 2) < 72_000
    assert predicted_s(Predictions(kind), "bob", 2) < 18_000


def test_times_are_in_the_sites_time_zone(tmp_path: Path) -> None:
    past = PastJobs.read(sacct(tmp_path / "jobs.txt"))
    assert past.origin_s == START_S
    events = past._events()
    assert events == sorted(events)
    assert events[0] == (START_S, 1, 0)


def test_snapshot_with_another_history_is_not_used(tmp_path: Path) -> None:
    past, other = (PastJobs.read(sacct(tmp_path / f"{n}.txt", n)) for n in (60, 58))
    assert past.digest == PastJobs.read(sacct(tmp_path / "again.txt", 60)).digest != other.digest
    scheduler = load_scheduler("fifo-backfill")
    keys = {made_for(scheduler, Predictions(RUNNING_MEAN, one).made_for, 1.0) for one in (None, past, other)}
    assert len(keys) == 3


def test_warm_book_reads_the_history_once(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = PastJobs.read(sacct(tmp_path / "jobs.txt"))
    told = []
    monkeypatch.setattr(PastJobs, "tell_mean", lambda _, mean: told.append(mean))
    warm = Warm(load_scheduler("fifo-backfill"), "", RUNNING_MEAN, past=past)
    state = warm.catch_up(journal)
    assert len(told) == 1
    assert state.predictions.made_for == f"{RUNNING_MEAN} {past.digest}"


def test_invalid_history_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("job_id,submit_time,duration,num_gpus\na,0,60,1\n")
    with pytest.raises(InputError, match="expected the output of sacct"):
        PastJobs.read(trace)
    never = tmp_path / "never.txt"
    never.write_text(SACCT + "1|j|ann|gpu|COMPLETED|100|160|200|cpu=1\n")
    with pytest.raises(InputError, match=r"no job of this history has GPUs .* expected gres/gpu"):
        PastJobs.read(never)
    never.write_text(SACCT + "1|j|ann|gpu|COMPLETED|160|100|200|gres/gpu=1\n")
    with pytest.raises(InputError, match="expected jobs with GPUs that started and ended"):
        PastJobs.read(never)
    where = ["--keys", str(tmp_path / "k"), "--address", "tcp://127.0.0.1:0"]
    assert run(["broker", *where, "--history", str(trace)]) == 2
    assert "expected the output of sacct" in capsys.readouterr().err
