"""A real broker learns from real processes, fits in the background, and reports its accuracy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from rlsched.broker.base.entries import JobSubmitted
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.reading import read_journal
from rlsched.broker.journal.replay import JOURNAL_FILE
from rlsched.cli.operators.predictor import predictor
from rlsched.client.client import Client
from rlsched.decide.registry import load_scheduler
from rlsched.transport.keys import KeyHome
from rlsched.wire.messages import PredictionReport
from rlsched.workload.predict.kinds import HEDGE
from tests.support.broker.hand import hello, run_one
from tests.support.broker.hand_broker import HandBroker
from tests.support.exited import has_exited

pytestmark = pytest.mark.slow

RLSCHED = (sys.executable, "-c", "from rlsched.cli.main import main; main()")
DEADLINE_S = 300.0
PAST = 200
REAL = 30


def until(look: Callable[[], object], what: str) -> None:
    """Poll until a condition holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not look():
        assert time.monotonic() < deadline, f"timed out waiting until {what}"
        time.sleep(0.02)


def write_past(path: Path) -> None:
    """A journal in which `PAST` jobs have ended: probes of half a minute, training of 2.5 hours."""
    journal = Journal(path)
    journal._db.execute("PRAGMA synchronous=OFF")  # it is closed before it is read
    broker = HandBroker(load_scheduler("fifo-backfill"), journal, prediction=HEDGE)
    broker.says("n0", hello("n0"))
    for k in range(PAST // 2):
        run_one(broker, 30.0 + k % 7, name=f"probe-{k}", user="ann")
        run_one(broker, 9000.0 + 10 * (k % 11), name=f"train-{k}", user="bob")
    journal.close()


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """This journal, as a file."""
    path = tmp_path_factory.mktemp("past") / JOURNAL_FILE
    write_past(path)
    return path.read_bytes()


@contextmanager
def running(verb: str, folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """`rlsched up` or `rlsched broker`, stopped afterwards if it still runs."""
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [
                *RLSCHED, verb, "--policy", "qssf-backfill", "--address", "tcp://127.0.0.1:0",
                "--decision-budget-ms", "10000", "--keys", str(folder / "home"), *options,
            ],
            stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE_S)


def address_of(directory: Path, folder: Path, process: subprocess.Popen[bytes]) -> str:
    """The address on which it listens, once it is ready."""

    def ready() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        return "ready" in (folder / "log").read_text()

    until(ready, "it is up")
    return (directory / "address").read_text().strip()


def predictor_report(client: Client) -> PredictionReport:
    report = client.stats().prediction
    assert report is not None
    return report


def test_repeated_jobs_become_well_predicted_and_the_report_shows_it(past: bytes, tmp_path: Path) -> None:
    directory = tmp_path / "up" / "broker"
    directory.mkdir(parents=True)
    (directory / JOURNAL_FILE).write_bytes(past)
    options = ("--nodes", "2", "--gpus", "4", "--dir", str(tmp_path / "up"), "--prediction", HEDGE)
    with running("up", tmp_path, *options) as process:
        address = address_of(directory, tmp_path, process)
        with Client(address, home=tmp_path / "home") as client:
            until(lambda: predictor_report(client).fits == 1, "boosting is fitted in the background")
            assert "boosting fitted on 200 jobs" in (tmp_path / "up" / "broker.log").read_text()
            probe = client.job(client.submit(["true"], name="probe-7000", user="ann"))
            train = client.job(client.submit(["true"], name="train-7000", user="bob"))
            assert probe.predicted_s is not None
            assert train.predicted_s is not None
            assert (probe.predicted_by, train.predicted_by) == (HEDGE, HEDGE)
            assert probe.predicted_s < 500 < 6000 < train.predicted_s < 15_000
            predicted = []
            for k in range(REAL):
                job = client.submit(["true"], name=f"real-{k}", user="eve", num_gpus=4)
                assert client.wait(job).state == "completed"
                predicted.append(client.job(job).predicted_s)
            first, last = predicted[0], predicted[-1]
            assert first is not None
            assert last is not None
            assert last < 0.1 * first
            report = predictor_report(client)
            assert (report.ended, report.last_week.jobs) == (PAST + REAL + 2, REAL + 2)
            ours, mean = report.last_jobs.predicted, report.last_jobs.running_mean
            assert ours is not None
            assert mean is not None
            assert ours.median_abs_ln < 0.5 * mean.median_abs_ln
        asked = ["--broker", address, "--keys", str(tmp_path / "home")]
        said = json.loads(CliRunner().invoke(predictor, [*asked, "--json"], catch_exceptions=False).output)
        assert said["prediction"]["last_jobs"]["predicted"]["median_abs_ln"] == ours.median_abs_ln
        assert (said["prediction"]["fits"], said["prediction"]["fitted_jobs"]) == (1, PAST)
        assert said["prediction"]["fit_error"] is None
        page = CliRunner().invoke(predictor, asked, catch_exceptions=False).output
        assert f"predictions: hedge, learned from {PAST + REAL + 2} jobs that ended" in page
        assert "boosting: last fitted" in page
        assert "last 200, running mean" in page


def children(pid: int) -> list[int]:
    """Child processes of this process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def test_kill_9_during_a_fit_loses_no_prediction_and_leaves_no_process(past: bytes, tmp_path: Path) -> None:
    directory = tmp_path / "broker"
    directory.mkdir()
    (directory / JOURNAL_FILE).write_bytes(past)
    KeyHome(tmp_path / "home").broker()
    predictions: list[dict[int, float | None]] = []
    for fits in (0, 1):
        (tmp_path / "log").unlink(missing_ok=True)
        with running("broker", tmp_path, "--dir", str(directory), "--prediction", HEDGE) as process:
            address = address_of(directory, tmp_path, process)
            with Client(address, home=tmp_path / "home") as client:
                if fits == 0:
                    until(lambda: predictor_report(client).fitting, "a fit is under way")
                    until(lambda pid=process.pid: children(pid), "its process is there")  # type: ignore[misc]
                    client.submit(["true"], name="probe-1", user="ann", token="during")
                    fit = children(process.pid)
                    predictions.append({job.job: job.predicted_s for job in client.jobs(finished=True)})
                    process.kill()
                    process.wait()
                    for pid in fit:
                        until(lambda pid=pid: has_exited(pid), "the fit has exited")  # type: ignore[misc]
                else:
                    predictions.append({job.job: job.predicted_s for job in client.jobs(finished=True)})
                    until(lambda: predictor_report(client).fits == 1, "it is fitted again")
                    assert client.submit(["true"], token="during") == PAST + 1
    assert predictions[0] == predictions[1]
    assert len(predictions[0]) == PAST + 1
    journalled = [row.entry for row in read_journal(directory / JOURNAL_FILE)]
    kept = {entry.job: entry.predicted_s for entry in journalled if isinstance(entry, JobSubmitted)}
    assert kept == predictions[1]
