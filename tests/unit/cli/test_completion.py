"""Shell completion with the documented line, and «did you mean» for verbs and options."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from rlsched.cli.main import cli, run

ROOT = Path(__file__).parents[3]
HERE = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def completed(*words: str) -> list[str]:
    """Completions that a shell receives for the last word."""
    asked = {"_RLSCHED_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words)}
    found = subprocess.run(
        ["rlsched"],
        env={**HERE, **asked, "COMP_CWORD": str(len(words) - 1)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stderr == "", "nothing is written over the line being typed"
    return found.stdout.split()


def test_documented_line_installs_completion() -> None:
    page = (ROOT / "docs/how-to/from-slurm.md").read_text(encoding="utf-8")
    lines = re.findall(r"^echo '(eval .*)' >> ~/\.bashrc", page, re.MULTILINE)
    assert len(lines) == 1
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{lines[0]}\ncomplete -p rlsched"],
        env=HERE,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "-F _rlsched_completion rlsched" in done.stdout


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("rlsched", "eval"), ["plain,evaluate"]),
        (("rlsched", "journal", "c"), ["plain,check", "plain,compact"]),
        (("rlsched", "evaluate", "--pol"), ["plain,--policy"]),
        (("rlsched", "evaluate", "--policy", "qssf"), ["plain,qssf", "plain,qssf-backfill"]),
        (("rlsched", "evaluate", "--policy", "fifo", "--set", "x"), []),
        (("rlsched", "evaluate", "--policy", "./ours"), ["file,./ours"]),
        (("rlsched", "evalute", "--pol"), []),
    ],
)
def test_words_are_completed(words: tuple[str, ...], offered: list[str]) -> None:
    assert completed(*words) == offered


def mistyped(word: str) -> str:
    """The word with its first two letters swapped, after the dashes."""
    at = len(word) - len(word.lstrip("-"))
    while word[at] == word[at + 1]:
        at += 1
    return f"{word[:at]}{word[at + 1]}{word[at]}{word[at + 2 :]}"


def every() -> list[tuple[str, ...]]:
    """Every verb and sub-verb, with its longest option."""
    found: list[tuple[str, ...]] = []
    for verb in cli.list_commands(click.Context(cli)):
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        found.append((verb,))
        groups = command.commands.items() if isinstance(command, click.Group) else ()
        found += [(verb, name) for name, _ in groups]
        for words, one in [((verb,), command), *(((verb, name), child) for name, child in groups)]:
            longest = max((option for own in one.params for option in own.opts), key=len, default="")
            if longest.startswith("--"):
                found.append((*words, longest))
    return found


def test_every_mistyped_word_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    unnamed = []
    for *words, last in every():
        code = run([*words, mistyped(last)])
        said = capsys.readouterr().err
        if code != 2 or last not in said or "id you mean" not in said or said.count("\n") != 1:
            unnamed.append((*words, mistyped(last), code, said))
    assert unnamed == []
