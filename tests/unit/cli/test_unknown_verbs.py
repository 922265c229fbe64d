"""A verb that does not exist: the error names the verb to use."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from rlsched.cli.main import cli
from rlsched.cli.verbs import ELSEWHERE, SUMMARIES


def error_of(word: str) -> str:
    done = CliRunner().invoke(cli, [word])
    assert done.exit_code == 2
    return " ".join(done.output.split())


@pytest.mark.parametrize("word", sorted(ELSEWHERE))
def test_words_of_other_tools_name_verbs_that_exist(word: str) -> None:
    assert word not in SUMMARIES
    assert f"no verb {word!r}; it is `rlsched {ELSEWHERE[word]}` here" in error_of(word)
    named = ELSEWHERE[word].replace(" or ", " ").replace(",", "").split()
    assert named[0] in SUMMARIES


def test_a_misspelt_verb_names_the_nearest() -> None:
    assert "no verb 'qeue'; did you mean queue?" in error_of("qeue")
