"""Files of `--output` and `--error`: patterns, and the names in the launches."""

from __future__ import annotations

import pytest

from rlsched.broker.base.entries import RankOutputFailed
from rlsched.broker.base.output_files import expanded, names_rank, values, wrong_pattern
from rlsched.broker.journal.journal import Journal
from rlsched.wire.messages import Explanation, Launch, OutputFailed, Refused, Tasks, Why
from tests.support.broker.hand import ended, launched, make, submit
from tests.support.broker.hand_broker import HandBroker

TEXTS = values(job=19, array=17, task=3, name="a/b", user="ada", node="n1.site.org", rank=2)


def launches(broker: HandBroker) -> list[Launch]:
    """The launches that the broker has sent."""
    return [message for _, message in broker.sent.orders if isinstance(message, Launch)]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("out.txt", "out.txt"),
        ("/logs/%x-%j.out", "/logs/a_b-19.out"),
        ("%A_%a.%N.%n.%t.%u", "17_3.n1.2.2.ada"),
        ("%05j %3N 100%%", "00019 n1 100%"),
    ],
)
def test_pattern_with_its_values(pattern: str, text: str) -> None:
    assert wrong_pattern("output", pattern) == ""
    assert expanded(pattern, TEXTS) == text


def test_outside_an_array_the_array_is_the_job() -> None:
    texts = values(job=19, array=0, task=0, name="a", user="u", node="n", rank=0)
    assert expanded("%A_%a", texts) == "19_0"


def test_which_patterns_give_each_rank_a_file() -> None:
    assert [names_rank(one) for one in ("%j", "%%n", "%N", "%2n", "%t", "n")] == [
        *(False, False, True),
        *(True, True, False),
    ]


@pytest.mark.parametrize("pattern", ["%", "a%z", "%123j", "%5"])
def test_unknown_pattern_is_refused_by_name(journal: Journal, pattern: str) -> None:
    reply = make(journal).ask(submit(1, output=pattern))
    assert isinstance(reply, Refused)
    assert reply.message.startswith("output: expected %% or % with one of A a j N n t u x, got '%")


def test_a_directory_is_refused(journal: Journal) -> None:
    reply = make(journal).ask(submit(1, error="logs/"))
    assert isinstance(reply, Refused)
    assert reply.message == "error: expected a file, got a directory: 'logs/'"


@pytest.mark.parametrize(
    ("mode", "appends"), [("auto", [False, True]), ("truncate", [False, False]), ("append", [True, True])]
)
def test_a_later_attempt_continues_the_files(journal: Journal, mode: str, appends: list[bool]) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit(1, output="%j.out", error="%x.err", name="n", open_mode=mode))
    broker.says("n0", launched(1))
    broker.says("n0", ended(1, exit_code=143, reason="node_stopped"))
    broker.wait(60.0, "n0")
    found = launches(broker)
    assert [(one.output, one.error, one.appends) for one in found] == [
        ("1.out", "n.err", one) for one in appends
    ]
    assert not any(one.whole_lines for one in found)


def test_ranks_of_a_gang_append_lines_to_a_file_that_they_share(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    broker.ask(submit(8, output="%j.out"))
    broker.ask(submit(8, output="%j.%N.out", error="%n.err"))
    found = [(one.output, one.error, one.appends, one.whole_lines) for one in launches(broker)]
    assert found == [("1.out", "", True, True)] * 2
    for rank in (0, 1):
        broker.says(f"n{rank}", launched(1, rank=rank))
        broker.says(f"n{rank}", ended(1, rank=rank))
    found = [(one.output, one.error, one.appends, one.whole_lines) for one in launches(broker)[2:]]
    assert found == [("2.n0.out", "0.err", False, False), ("2.n1.out", "1.err", False, False)]


def test_tasks_of_an_array_have_files_of_their_own(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit(1, output="%A_%a.out", tasks=[Tasks(3, 5)]))
    broker.wait(1.0, "n0")
    assert [one.output for one in launches(broker)] == ["1_3.out", "1_4.out", "1_5.out"]


def test_a_file_that_cannot_be_written_is_in_the_explanation(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit(1, output="/x"))
    broker.says("n0", launched(1))
    failed = OutputFailed(job=1, attempt=1, rank=0, message="--output /x: Permission\ndenied")
    broker.says("n0", failed)
    broker.says("n0", failed)  # repeated after a reconnection
    broker.says("n0", OutputFailed(job=1, attempt=2, rank=0, message="of no attempt"))
    kept = [row.entry.message for row in journal.rows() if isinstance(row.entry, RankOutputFailed)]
    assert kept == ["--output /x: Permission\\ndenied"]
    line = f"node n0 does not write its output to a file: {kept[0]}"
    assert line in details(broker)
    broker.says("n0", ended(1))
    assert line in details(broker), "also of the finished job"
    assert line in details(make(journal)), "after a restart"


def details(broker: HandBroker) -> list[str]:
    """The explanation of job 1."""
    reply = broker.ask(Why(job=1))
    assert isinstance(reply, Explanation), reply
    return reply.details
