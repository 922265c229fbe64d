"""Fits of the predictor in the background: their results, and every way in which a fit can fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlsched.broker.forecasts.fitting import MAX_RETRY_S, RETRY_S, Fits, fit_command
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import JOURNAL_FILE
from rlsched.broker.server.serve import Broker
from rlsched.broker.server.settings import BrokerSettings
from rlsched.broker.state.predictions import Predictions
from rlsched.client.client import Client
from rlsched.decide.registry import load_scheduler
from rlsched.workload.predict.kinds import HEDGE, RUNNING_MEAN
from tests.support.broker.hand import draft, hello, run_one
from tests.support.broker.hand_broker import HandBroker
from tests.support.exited import has_exited

DEADLINE_S = 300.0
"""A fit runs at a low priority."""


def until(look: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not look():
        assert time.monotonic() < deadline, f"timed out waiting until {what}"
        time.sleep(0.01)


def learnt(jobs: int = 200, kind: str = HEDGE) -> Predictions:
    """Predictions after this number of ended jobs."""
    predictions = Predictions(kind)
    for k in range(1, jobs + 1):
        (entry,) = predictions.predict([draft(k)], 100.0 * k)
        predictions.record_submission(entry, 100.0 * k)
        predictions.record_start(k, 100.0 * k)
        predictions.record_run_time(entry, 5.0 + 400.0 * (k % 3), 100.0 * k + 50.0)
    return predictions


class Watched:
    """Fits with a clock that the test moves, and their log lines."""

    def __init__(self, predictions: Predictions, script: str | None = None, limit_s: float = 300.0) -> None:
        self.predictions, self.lines, self.now_s = predictions, list[str](), 0.0
        self.started: list[float] = []
        self.script = script
        self.fits = Fits(
            predictions, self.lines.append, command=self.command, limit_s=limit_s, elapsed=lambda: self.now_s
        )

    def command(self, limit_s: float) -> list[str]:
        self.started.append(self.now_s)
        return fit_command(limit_s) if self.script is None else [sys.executable, "-c", self.script]

    def step_until_logged(self) -> str:
        lines = len(self.lines)

        def logged() -> bool:
            self.fits.step(1e6)
            return len(self.lines) > lines

        until(logged, "a fit has ended")
        return self.lines[-1]


@pytest.fixture
def watch() -> Iterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def make(*args: object, **more: object) -> Watched:
        made.append(Watched(*args, **more))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.fits.close()


def pid_of(watched: Watched) -> int:
    fit = watched.fits._fit
    assert fit is not None
    until(lambda: fit._process is not None, "the process is there")
    assert fit._process is not None
    return fit._process.pid


def test_finished_fit_is_used(watch: Callable[..., Watched]) -> None:
    watched = watch(learnt())
    watched.fits.step(1e6)
    report = watched.predictions.report(1e6)
    assert (report.fitting, report.fits, report.fitted_s) == (True, 0, None)
    assert "boosting is being fitted" in report.note
    assert "boosting fitted on 200 jobs in" in watched.step_until_logged()
    report = watched.predictions.report(1e6)
    assert (report.fitting, report.fits, report.fitted_s, report.fitted_jobs) == (False, 1, 1e6, 200)
    assert (report.next_fit_jobs, report.note, report.fit_error) == (300, "", None)
    (entry,) = watched.predictions.predict([draft(1000)], 1e6)
    (unfitted,) = learnt().predict([draft(1000)], 1e6)
    assert entry.said != unfitted.said
    watched.fits.step(1e6)
    assert watched.started == [0.0]


@pytest.mark.slow
def test_fit_after_a_failed_one_is_used(watch: Callable[..., Watched]) -> None:
    watched = watch(learnt(), "raise SystemExit(1)")
    watched.step_until_logged()
    watched.now_s, watched.script = RETRY_S, None
    assert "boosting fitted on 200 jobs" in watched.step_until_logged()
    report = watched.predictions.report(1e6)
    assert (report.fit_error, report.fits, report.next_fit_jobs) == (None, 1, 300)


def test_no_fit_with_too_few_ended_jobs_or_a_running_mean(watch: Callable[..., Watched]) -> None:
    for predictions in (learnt(199), learnt(250, RUNNING_MEAN)):
        watched = watch(predictions)
        watched.fits.step(1e6)
        assert watched.started == []


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("raise SystemExit('no memory')", "the fitting process ended with exit code 1: no memory"),
        ("import os; os.kill(os.getpid(), 9)", "the fitting process ended with exit code -9: no message"),
        ("print('not a pickle')", "the result of the fit cannot be used: UnpicklingError"),
        ("import pickle, sys; pickle.dump([1], sys.stdout.buffer)", "expected a HazardModel, got list"),
    ],
)
def test_failed_fit_is_logged_and_retried_later(
    script: str, said: str, watch: Callable[..., Watched]
) -> None:
    watched = watch(learnt(), script)
    assert said in watched.step_until_logged()
    assert f"next try in {RETRY_S:g} s" in watched.lines[-1]
    report = watched.predictions.report(1e6)
    assert (report.fits, report.fitting) == (0, False)
    assert said in str(report.fit_error)
    watched.now_s = RETRY_S - 1.0
    watched.fits.step(1e6)
    assert watched.started == [0.0]
    watched.now_s = RETRY_S
    watched.fits.step(1e6)
    assert watched.started == [0.0, RETRY_S]


def test_loop_survives_a_thread_that_cannot_start_and_a_closed_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def closed(_: str) -> None:
        raise BrokenPipeError

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    predictions = learnt()
    fits = Fits(predictions, closed, elapsed=lambda: 0.0)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    fits.step(1e6)
    report = predictions.report(1e6)
    assert (report.fitting, report.fit_error) == (False, "no thread can be started: can't start new thread")
    fits.step(1e6)
    assert predictions.report(1e6).next_fit_jobs == 200


def test_hanging_fit_is_killed(watch: Callable[..., Watched]) -> None:
    watched = watch(learnt(), "import time; time.sleep(600)", limit_s=0.3)
    watched.fits.step(1e6)
    pid = pid_of(watched)
    assert "the fit took longer than 0.3 s" in watched.step_until_logged()
    assert has_exited(pid)


def test_retries_back_off(watch: Callable[..., Watched]) -> None:
    watched = watch(learnt(), "raise SystemExit(1)")
    waits = []
    for _ in range(8):
        line = watched.step_until_logged()
        waits.append(float(line.rpartition("next try in ")[2].split()[0].replace(",", "")))
        watched.now_s += waits[-1]
    assert waits == [min(RETRY_S * 2**k, MAX_RETRY_S) for k in range(8)]


def test_close_kills_the_running_fit(watch: Callable[..., Watched]) -> None:
    watched = watch(learnt(), "import time; time.sleep(600)")
    watched.fits.step(1e6)
    pid = pid_of(watched)
    watched.fits.close()
    assert has_exited(pid)


def test_fit_process_ends_with_its_parent(tmp_path: Path) -> None:
    """kill -9 of the parent also ends a fit that still waits for its training set."""
    script = (
        "import subprocess, sys, time\n"
        "from rlsched.broker.forecasts.fitting import child_environment, fit_command\n"
        "child = subprocess.Popen(fit_command(600), stdin=subprocess.PIPE, env=child_environment())\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    holder = os.open(tmp_path, os.O_RDONLY)
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    until(lambda: not has_exited(pid), "it runs")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    os.close(holder)
    until(lambda: has_exited(pid), "the fit has exited too")


@pytest.fixture
def serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Broker, BrokerSettings, threading.Thread]]:
    """A broker in a thread. Enough jobs of its journal have ended for a fit, and its fits hang."""
    monkeypatch.setattr("rlsched.workload.predict.predictor.MIN_ENDED", 20)
    journal = Journal(tmp_path / "b" / JOURNAL_FILE)
    hand = HandBroker(load_scheduler("fifo"), journal, prediction=HEDGE)
    hand.says("n0", hello("n0"))
    for k in range(20):
        run_one(hand, 10.0, name=f"x-{k}")
    journal.close()
    settings = BrokerSettings(
        address="tcp://127.0.0.1:0", directory=tmp_path / "b", keys=tmp_path, policy="fifo", prediction=HEDGE
    )
    broker = Broker(settings)
    broker._fits._command = lambda _: [sys.executable, "-c", "import time; time.sleep(600)"]
    thread = threading.Thread(target=broker.serve)
    thread.start()
    yield broker, settings, thread
    broker.stop()
    thread.join(DEADLINE_S)
    broker.close()


def test_broker_answers_while_a_fit_hangs_and_kills_it_on_close(
    serving: tuple[Broker, BrokerSettings, threading.Thread],
) -> None:
    broker, settings, thread = serving
    with Client(broker.address, home=settings.keys, timeout_s=DEADLINE_S) as client:

        def fitting() -> bool:
            report = client.stats().prediction
            return report is not None and bool(report.fitting)

        until(fitting, "a fit is under way")
        for k in range(40):
            client.submit(["true"], name=f"y-{k}")
        assert fitting()
        assert len(client.jobs()) == 40
    fit = broker._fits._fit
    assert fit is not None
    assert fit._process is not None
    assert not fit.done.is_set()
    broker.stop()
    thread.join(DEADLINE_S)
    broker.close()
    assert has_exited(fit._process.pid)
