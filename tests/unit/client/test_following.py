"""Following a job's output: ranks interleaved, from before the start, and the last lines."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial

import msgspec
import pytest
from click.testing import CliRunner

from rlsched.cli.users.output import state_line
from rlsched.cli.users.submit import run
from rlsched.client import following
from rlsched.client.following import follow, tail
from rlsched.errors import BrokerUnavailableError, InputError
from rlsched.signals import on_signals
from rlsched.wire.messages import JobInfo, LogChunk
from tests.support.listed import job


class Story:
    """A broker that advances its script each time the job is queried."""

    def __init__(self, *chapters: tuple[JobInfo, list[bytes]]) -> None:
        self._chapters, self._at = chapters, -1
        self.away: set[int] = set()
        self.broker_away = 0

    def job(self, number: int) -> JobInfo:  # noqa: ARG002
        self._answer()
        self._at = min(self._at + 1, len(self._chapters) - 1)
        return self._chapters[self._at][0]

    def read_log(self, job: int, *, rank: int = 0, offset: int = 0) -> LogChunk:  # noqa: ARG002
        self._answer()
        info, outputs = self._chapters[max(self._at, 0)]
        if rank in self.away:
            raise InputError(f"node n{rank}, which has this output, is down")
        start = max(len(outputs[rank]) + offset, 0) if offset < 0 else offset
        return LogChunk(data=outputs[rank][start:], offset=start, eof=False, attempt=info.attempt)

    def _answer(self) -> None:
        if self.broker_away:
            self.broker_away -= 1
            raise BrokerUnavailableError("no broker answers")


GANG = job(7, state="running", nodes=["n0", "n1"], gpus=[[0], [0]], num_gpus=2)
QUEUED = job(7, state="queued", nodes=[], gpus=[], attempt=0, start_s=None, reason="Resources: needs 2 GPUs")
OVER = msgspec.structs.replace(GANG, state="completed")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following.time, "sleep", lambda _: None)


def printed(pieces: Iterator[JobInfo | bytes]) -> tuple[list[str], bytes]:
    states, output = list[str](), b""
    for piece in pieces:
        if isinstance(piece, JobInfo):
            states += [piece.state] if piece.state not in states[-1:] else []
        else:
            output += piece
    return states, output


def test_gang_is_followed_from_the_queue_to_its_end_line_by_line() -> None:
    grown = [b"a1\na2\n", b"b1\n"]
    story = Story(
        (QUEUED, []), (GANG, [b"a1\na", b""]), (GANG, grown), (OVER, [grown[0], grown[1] + b"last"])
    )  # fmt: skip
    states, output = printed(follow(story, 7))
    assert states == ["queued", "running", "completed"]
    assert output == b"0: a1\n0: a2\n1: b1\n1: last\n"


def test_new_attempt_starts_at_its_first_line() -> None:
    again = msgspec.structs.replace(OVER, attempt=2, nodes=["n0"], gpus=[[0]])
    assert printed(follow(Story((GANG, [b"one\n", b""]), (again, [b"two\n"])), 7))[1] == b"0: one\ntwo\n"


def test_last_output_of_an_attempt_precedes_the_next_attempt() -> None:
    again = msgspec.structs.replace(OVER, attempt=2)
    story = Story((GANG, [b"one\nha", b""]), (again, [b"two\n", b""]))
    assert printed(follow(story, 7))[1] == b"0: one\n0: ha\n0: two\n"


def test_array_has_no_output_of_its_own() -> None:
    array = msgspec.structs.replace(QUEUED, num_tasks=10, tasks="0-9")
    story = Story((array, []))
    story.away = {0}  # the broker's refusal
    with pytest.raises(InputError, match="which has this output"):
        printed(follow(story, 7))
    running = msgspec.structs.replace(array, state="running", reason="8 tasks wait, 2 run")
    assert state_line(running).endswith("running: 8 tasks wait, 2 run")
    done = CliRunner().invoke(run, ["--array", "0-2", "--", "true"])
    assert (done.exit_code, "use `rlsched submit` for arrays" in done.output) == (2, True)


def test_current_output_of_a_running_or_waiting_job() -> None:
    assert printed(follow(Story((GANG, [b"a\n", b"b\n"])), 7, to_its_end=False)) == (
        ["running"],
        b"0: a\n1: b\n",
    )
    assert printed(follow(Story((QUEUED, [])), 7, to_its_end=False)) == (["queued"], b"")


@pytest.mark.parametrize("to_its_end", [True, False])
def test_rank_on_a_node_that_is_down_hides_no_other(to_its_end: bool) -> None:
    story = Story((OVER, [b"a\n", b"b\n"]))
    story.away = {0}
    pieces = follow(story, 7, to_its_end=to_its_end)
    assert next(pieces) == OVER
    assert next(pieces) == b"1: b\n"
    with pytest.raises(InputError, match="rank 0: node n0, which has this output, is down"):
        list(pieces)


def test_restart_of_the_broker_is_waited_for() -> None:
    story = Story((GANG, [b"a\n", b"b\n"]), (OVER, [b"a\nc\n", b"b\n"]))
    pieces = follow(story, 7)
    assert next(pieces) == GANG
    story.broker_away = 5
    assert printed(pieces) == (["completed"], b"0: a\n0: c\n1: b\n")


def test_broker_that_stays_unreachable_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story((GANG, [b"a\n", b"b\n"]))
    story.broker_away = 1
    with pytest.raises(BrokerUnavailableError):
        next(follow(story, 7))  # no broker has ever answered
    monkeypatch.setattr(following, "PATIENCE_S", 0.01)
    pieces = follow(story, 7)
    assert next(pieces) == GANG
    story.broker_away = 1_000_000_000
    with pytest.raises(BrokerUnavailableError):
        list(pieces)


def test_tail_of_a_long_output_starts_with_a_whole_line() -> None:
    info = msgspec.structs.replace(OVER, nodes=["n0"], gpus=[[0]])
    end = tail(Story((info, [b"first\nsecond\nthird\nfourth"])), info, num_bytes=15)
    assert end.lines() == [b"third", b"fourth"]
    assert end.lines(1) == [b"fourth"]


def test_ranks_of_a_gang_share_the_last_lines() -> None:
    story = Story((OVER, [b"a1\na2\na3\n", b"b1\nb2\n"]))
    assert tail(story, OVER).lines(4) == [b"0: a2", b"0: a3", b"1: b1", b"1: b2"]
    story.away = {1}
    assert tail(story, OVER).lines(1) == [b"0: a3", b"1: (node n1, which has this output, is down)"]
    assert tail(story, QUEUED).is_empty
    many = msgspec.structs.replace(OVER, nodes_omitted=10)
    assert tail(Story((many, [b"x\n"] * 12)), many).lines()[-1].startswith(b"(4 more ranks;")


class Submits(Story):
    """A `Story` that also accepts a submission and its cancel."""

    def __init__(
        self,
        happens: Callable[[], object],
        *later: tuple[JobInfo, list[bytes]],
    ) -> None:
        super().__init__((GANG, [b"a\n", b"b\n"]), *later)
        self._happens = happens
        self.cancelled: list[int] = []

    def __enter__(self) -> Submits:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, words: list[str], **asked: object) -> int:  # noqa: ARG002
        return 7

    def cancel(self, job: int) -> None:
        os.kill(os.getpid(), signal.SIGHUP)  # as a shell sends it a second time
        self.cancelled.append(job)

    def output(self, job: int, *, to_its_end: bool, labelled: bool | None) -> Iterator[JobInfo | bytes]:
        self._happens()
        return follow(self, job, to_its_end=to_its_end, labelled=labelled)


@pytest.mark.parametrize(
    "happens",
    [
        partial(os.kill, os.getpid(), signal.SIGHUP),
        partial(os.kill, os.getpid(), signal.SIGTERM),
    ],
)
def test_run_cancels_its_job_when_its_terminal_closes(
    happens: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Submits(happens)
    monkeypatch.setattr("rlsched.cli.shared.options.BrokerAt.reach", lambda *_, **__: client)
    both = (signal.SIGHUP, signal.SIGTERM)
    with on_signals(signal.SIG_DFL, both):  # a test run under `nohup` ignores SIGHUP
        done = CliRunner().invoke(run, ["--", "true"], standalone_mode=False)
        assert {signal.getsignal(number) for number in both} == {signal.SIG_DFL}
    assert (done.return_value, client.cancelled) == (130, [7]), done.exception


class Interrupted(Submits):
    """A `Submits` whose cancel is not interrupted."""

    def cancel(self, job: int) -> None:
        self.cancelled.append(job)


def test_run_shows_output_until_the_end_after_the_first_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state line follows all output."""
    ended = msgspec.structs.replace(OVER, state="cancelled", reason="cancelled by its user")
    client = Interrupted(
        partial(os.kill, os.getpid(), signal.SIGINT),
        (ended, [b"a\nlast\n", b"b\n"]),
    )
    monkeypatch.setattr("rlsched.cli.shared.options.BrokerAt.reach", lambda *_, **__: client)
    with on_signals(signal.default_int_handler, (signal.SIGINT,)):
        done = CliRunner().invoke(run, ["--", "true"], standalone_mode=False)
    assert (done.return_value, client.cancelled) == (130, [7]), done.exception
    assert done.stdout == "0: a\n1: b\n0: last\n"
    assert done.output.splitlines()[-2:] == ["0: last", "job 7 cancelled: cancelled by its user"]


def test_run_leaves_at_the_second_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt_twice() -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    client = Interrupted(interrupt_twice)  # the job does not end
    monkeypatch.setattr("rlsched.cli.shared.options.BrokerAt.reach", lambda *_, **__: client)
    with on_signals(signal.default_int_handler, (signal.SIGINT,)):
        done = CliRunner().invoke(run, ["--", "true"], standalone_mode=False)
    assert (done.return_value, client.cancelled) == (130, [7]), done.exception
