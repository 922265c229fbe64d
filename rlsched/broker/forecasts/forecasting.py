"""The broker's interface to the forecaster's process, which the broker starts and never waits for."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from rlsched.broker.events import ClientAsked, Reply
from rlsched.broker.forecasts.fitting import child_environment
from rlsched.broker.forecasts.messages import (
    Answer,
    ForecasterSetup,
    Question,
    Refreshed,
    framed,
    get_tells,
    put,
)
from rlsched.broker.machine.submissions import wrong_question
from rlsched.broker.queries.forecasts import Forecasts
from rlsched.broker.state.jobs import Job
from rlsched.decisions.schema import ForecastSeen
from rlsched.wire.messages import DryRun, DryRunAnswer, ForecastReport, JobForecast, Refused
from rlsched.wire.states import QUEUED
from rlsched.yielding import background_command

AFTER_S: Final = 10.0
"""Time from the broker's start to the forecaster's start, seconds. A dry run can start it earlier."""
LEAST_S: Final = 2.0
RETRY_S: Final = 5.0
MAX_RETRY_S: Final = 600.0
"""Maximum delay before the forecaster is restarted, seconds. The delay doubles with every exit of the
forecaster, and new forecasts reset it.
"""
ANSWER_S: Final = 60.0
MAX_QUESTIONS: Final = 16
MAX_ASKERS: Final = 8
"""Maximum number of repeated requests for the same dry run that are answered; older ones get no answer."""
MAX_OF_ONE: Final = 4
"""Maximum number of unanswered dry runs per user, so that one user cannot occupy the forecaster."""
_BUSY: Final = f"{MAX_QUESTIONS} dry runs already wait for an answer; try again when one has arrived"
_BUSY_WITH_YOURS: Final = (
    f"{MAX_OF_ONE} of your dry runs already wait for an answer; try again when one has arrived"
)


def forecast_command() -> list[str]:
    """Return the command that starts the forecaster's process."""
    return background_command("rlsched.broker.forecasts.process")


class _Waiting(NamedTuple):
    """A dry run without an answer.

    Attributes:
        question: The dry run.
        askers: Requests of one user for this dry run, latest last, at most `MAX_ASKERS`. All get the answer.
        since_s: Time of the first request, seconds of a monotonic clock.
    """

    question: DryRun
    askers: list[ClientAsked]
    since_s: float

    @property
    def person(self) -> str:
        """The user who asked."""
        return self.askers[0].by.person

    def add(self, asked: ClientAsked) -> None:
        """Add a request, unless it is there already."""
        if all((one.peer, one.request) != (asked.peer, asked.request) for one in self.askers):
            self.askers.append(asked)
            del self.askers[:-MAX_ASKERS]

    def replies(self, answer: Refused | DryRunAnswer) -> list[Reply]:
        """Return the answer for each request."""
        return [Reply(one.peer, one.request, answer) for one in self.askers]


class Forecasting(Forecasts):
    """Runs a forecaster, and stores its latest forecasts. The broker's loop calls `step`, which never waits.

    Args:
        setup: First message to the process.
        say: Function that logs a line.
        after_s: Delay of the first start, seconds.
        command: Function that returns the command of the process.
        elapsed: A monotonic clock, seconds.
    """

    def __init__(
        self,
        setup: ForecasterSetup,
        say: Callable[[str], None],
        *,
        after_s: float = AFTER_S,
        command: Callable[[], Sequence[str]] = forecast_command,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._setup, self._say, self._command, self._elapsed = setup, say, command, elapsed
        self._child: _ForecasterProcess | None = None
        self._not_before_s, self._retry_s = elapsed() + after_s, RETRY_S
        self._jobs: dict[int, JobForecast] = {}
        self._report: ForecastReport | None = None
        self._note = "the forecaster is about to start"
        self._waits: dict[int, _Waiting] = {}
        self._next = self._first_of_child = 1

    def latest_forecast(self, job: Job) -> JobForecast | None:
        """Return the latest forecast of a live job; None: none, or only from before the last requeue."""
        said = self._jobs.get(job.number) if job.live else None
        if said is None or job.attempt is None:
            return said
        runs = job.state != QUEUED
        if runs and said.start_s is not None:
            return JobForecast(said_s=said.said_s, start_s=None, end_s=said.end_s)
        return None if not runs and said.start_s is None else said

    def report(self) -> ForecastReport | None:
        """Return the forecaster's state, for status reports."""
        if self._report is None:
            return ForecastReport(note=self._note)
        return msgspec.structs.replace(self._report, note=self._note)

    @property
    def process(self) -> int | None:
        """Process ID of the forecaster, None if it does not run."""
        return None if self._child is None else self._child.process.pid

    def use(self, setup: ForecasterSetup) -> None:
        """Replace the first message to the process, for example for a new policy, and restart the process."""
        self._setup = setup
        if self._child is not None:
            self._stop()
            self._not_before_s = self._elapsed()

    def ask(self, asked: ClientAsked, question: DryRun) -> str:
        """Forward a client's dry run to the forecaster. Return the reason for a refusal, else "".

        A later call of `step` returns the answer. A dry run that already waits for the same user is not
        forwarded again: clients repeat unanswered requests.
        """
        for waiting in self._waits.values():
            if waiting.person == asked.by.person and waiting.question == question:
                waiting.add(asked)
                return ""
        wrong = wrong_question(question)
        if wrong:
            return wrong
        if len(self._waits) >= MAX_QUESTIONS:
            return _BUSY
        if sum(one.person == asked.by.person for one in self._waits.values()) >= MAX_OF_ONE:
            return _BUSY_WITH_YOURS
        if self._child is None and self._retry_s == RETRY_S:
            self._start()
        if self._child is None:
            return f"the forecaster does not run: {self._note}; try again later"
        number, self._next = self._next, self._next + 1
        if not self._child.ask(Question(number=number, asked=question, user=asked.by.person)):
            return "the forecaster is busy; ask again later"
        self._waits[number] = _Waiting(question, [asked], self._elapsed())
        return ""

    def step(self) -> tuple[list[ForecastSeen], list[Reply]]:
        """Process the forecaster's messages, and start the process again if it has exited.

        Return the forecasts whose outcomes are now known, and the answers to dry runs.
        """
        seen: list[ForecastSeen] = []
        replies: list[Reply] = []
        if self._child is None:
            if self._elapsed() >= self._not_before_s:
                self._start()
        else:
            for message in self._child.take_messages():
                if isinstance(message, Refreshed):
                    self._jobs, self._report, self._note = message.jobs, message.report, ""
                    self._retry_s = RETRY_S
                    seen += message.seen
                else:
                    replies += self._answer_replies(message)
            if self._child.has_exited:
                self._handle_failure(self._child.why())
        now = self._elapsed()
        for number in [number for number in self._waits if number < self._first_of_child]:
            replies += self._refusals(number, "the forecaster ended meanwhile; ask again")
        for number in [number for number, one in self._waits.items() if now - one.since_s > ANSWER_S]:
            replies += self._refusals(number, "the forecaster did not answer in time; ask again later")
        return seen, replies

    def _refusals(self, number: int, why: str) -> list[Reply]:
        return self._waits.pop(number).replies(Refused(message=why))

    def _answer_replies(self, answer: Answer) -> list[Reply]:
        waiting = self._waits.pop(answer.number, None)
        if waiting is None:
            return []
        if answer.refusal:
            return waiting.replies(Refused(message=answer.refusal))
        return waiting.replies(DryRunAnswer(said_s=answer.said_s, rows=answer.rows))

    def _start(self) -> None:
        try:
            self._child = _ForecasterProcess(self._command(), self._setup)
            self._note = "the forecaster reads the journal, and has sent no new forecasts yet"
        except (OSError, RuntimeError) as error:
            self._handle_failure(str(error))

    def _handle_failure(self, why: str) -> None:
        self._stop()
        self._note = f"the forecaster ended: {why}"
        self._not_before_s = self._elapsed() + self._retry_s
        with contextlib.suppress(OSError):  # the log is no longer read
            self._say(f"forecasts: {self._note}; next try in {self._retry_s:,.0f} s")
        self._retry_s = min(2.0 * self._retry_s, MAX_RETRY_S)

    def _stop(self) -> None:
        self._first_of_child = self._next
        if self._child is not None:
            self._child.close()
            self._child = None

    def close(self) -> None:
        """End the process."""
        self._stop()


class _ForecasterProcess:
    """The forecaster's process, and the threads that read its output."""

    def __init__(self, command: Sequence[str], setup: ForecasterSetup) -> None:
        self.process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=child_environment(),
            start_new_session=True,  # Ctrl-C reaches only the broker, which ends this process
        )
        self._heard: queue.SimpleQueue[Refreshed | Answer] = queue.SimpleQueue()
        self._last = b""
        self._reading = threading.Thread(target=self._listen, name="forecasts", daemon=True)
        self._logging = threading.Thread(target=self._log, name="forecasts' log", daemon=True)
        self._reading.start()
        self._logging.start()
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # the process has exited already
            put(self.process.stdin, setup)
            os.set_blocking(self.process.stdin.fileno(), False)

    def ask(self, question: Question) -> bool:
        """Send a question to the process. Return whether it was sent: usually not if the pipe is full."""
        assert self.process.stdin is not None
        frame = framed(question)
        if len(frame) > select.PIPE_BUF:  # a partial write would corrupt the frames that follow
            return False
        try:
            return os.write(self.process.stdin.fileno(), frame) == len(frame)
        except (OSError, ValueError):
            return False

    def take_messages(self) -> list[Refreshed | Answer]:
        """Return the messages since the last call."""
        found: list[Refreshed | Answer] = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._heard.get_nowait())
        return found

    @property
    def has_exited(self) -> bool:
        """Whether the process has exited, and all of its messages were read."""
        return not self._reading.is_alive() and self._heard.empty()

    def why(self) -> str:
        """Kill the process. Return a text with its exit code and the last line that it printed."""
        self.process.kill()
        code = self.process.wait()
        self._logging.join(1.0)
        lines = self._last.decode(errors="replace").strip().splitlines()
        return f"exit code {code}{': ' + lines[-1] if lines else ''}"

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
            while (message := get_tells(self.process.stdout)) is not None:
                self._heard.put(message)

    def _log(self) -> None:
        assert self.process.stderr is not None
        with contextlib.suppress(OSError, ValueError):
            for line in self.process.stderr:
                self._last = line

    def close(self) -> None:
        """Kill the process, and wait until it has ended."""
        self.process.kill()
        self.process.wait()
        self._reading.join(1.0)
        self._logging.join(1.0)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
