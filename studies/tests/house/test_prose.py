"""The check of words: it finds sentences that are hard to read, and no plain ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies.house import prose

READ_TWICE = [
    "After what silence nothing of a node's jobs runs any more that is fenced.",
    "Nodes that are to be taken for away.",
    "A node's message that nobody foresaw ends nothing but what it is about, and its sender rests.",
    "node n0 told its end in a way that nobody understands",
    "A picture of objects as bytes, and back, without pickle: nothing that it says is called.",
    "What a standby hears at its own address: nodes that have no other broker.",
    "those who knock without end do not keep messages waiting",
    "Say once for each policy in which ways the cluster is none that it met in training.",
    "Jobs of a higher one go first; who may ask for which, the broker says.",
    "Called so; * and ? as in a shell.",
    "Jobs that are over stay in memory for so long, 10,000 of them at most.",
    "One that takes longer is killed, and has failed.",
    "ended early, for its pairs told nothing of where to go",
    "A fit is due when so many times as many jobs have ended as at the last one.",
    "Whoever shoots its controller in that time loses jobs that were acknowledged",
]
PLAIN = [
    "Seconds of silence after which the node has killed all its fenced jobs.",
    "Nodes whose lease has expired; to be marked `away`.",
    "could not process the exit report from node n0",
    "Serialises an object graph to bytes without pickle. Loading never runs code from the data.",
    "The standby's listener. Counts nodes that have lost the primary; a majority is needed to take over.",
    "at most MAX_HANDSHAKES per call, so a handshake flood cannot starve messages",
    "Warn once per policy if the cluster is outside the ranges seen in training.",
    "Higher-priority jobs start first. The broker limits the highest a user may request.",
    "Only jobs whose name matches this glob pattern.",
    "How long finished jobs stay in memory (at most 10,000); older ones are read from the journal.",
    "Kill the health check after this many seconds and count it as failed.",
    "stopped early: no significant gradient signal",
    "Refit when the number of finished jobs has grown by this factor, or by this many.",
    "If slurmctld is killed in that window, acknowledged jobs are lost.",
    "Runs `nobody` as a user, and `those who` in code.",
]
SUBJECTS_READ_TWICE = [
    "Those who knock are counted from the first on in their test",
    "A node that does not answer is said to be one: the broker waits less",
    "Examples name no home of anybody",
    "Know the floor of power in a test",
    "Tell the changelog of the rows of the bar",
]
PLAIN_SUBJECTS = [
    "tests: count handshakes from the first one",
    "broker: time out log reads after 4 s, before the client",
    "docs: use neutral paths in examples",
    "node: create ranks inside their cgroup",
]
FOUND_IN_CODE = '''"""Starts it.

Whoever asks.
"""
PATH = "nobody"  # a single word is no message
ERROR = f"node {PATH} hears nothing"
#: Values that
#: somebody wrote.
'''


@pytest.mark.parametrize("sentence", READ_TWICE)
def test_sentence_with_listed_words_is_found(sentence: str) -> None:
    assert list(prose.in_prose(sentence))


@pytest.mark.parametrize("sentence", PLAIN)
def test_plain_sentence_is_not_found(sentence: str) -> None:
    assert not list(prose.in_prose(sentence))


@pytest.mark.parametrize("subject", SUBJECTS_READ_TWICE)
def test_subject_with_listed_words_is_found(subject: str) -> None:
    assert list(prose.in_subject(subject))


@pytest.mark.parametrize("subject", PLAIN_SUBJECTS)
def test_plain_subject_is_not_found(subject: str) -> None:
    assert not list(prose.in_subject(subject))


def test_docstrings_comments_and_messages_are_read_and_code_is_not() -> None:
    found = sorted((each.line, each.found.lower()) for each in prose.in_python(FOUND_IN_CODE))
    assert found == [(3, "whoever"), (6, "hears"), (8, "somebody")]


def test_words_across_lines_are_found() -> None:
    assert [each.line for each in prose.in_prose("Jobs, and those\nthat wait.")] == [1]


def test_code_blocks_of_a_document_are_left_out() -> None:
    text = "Plain.\n\n```console\n$ id nobody\n```\n\nA job for nobody.\n"
    assert [each.line for each in prose.in_markdown(text)] == [7]


def test_listed_files_exist() -> None:
    assert [path for path in prose.left_out() if not path.exists()] == []


def test_the_command_prints_a_line_for_each_finding(capsys: pytest.CaptureFixture[str]) -> None:
    own = Path(prose.__file__)
    assert prose.main([str(own)]) == 0
    assert capsys.readouterr().out == ""
