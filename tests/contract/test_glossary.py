"""The glossary has every term of `--help`: abbreviations as found, words of the field by a list."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from rlsched.cli.main import cli

PAGE = Path(__file__).parents[2] / "docs/reference/glossary.md"
TERMS = (
    *("account", "array", "attempt", "backfill", "broker", "carbon intensity", "catalogue", "cell"),
    "checkpoint",
    *(
        "clock",
        "control group",
        "core",
        "daemon",
        "decision",
        "dependency",
        "dial",
        "digest",
        "drain",
        "duration",
        "engine",
    ),
    *(
        "fair share",
        "fallback",
        "forecaster",
        "gateway",
        "grace",
        "grade",
        "history",
        "hold",
        "journal",
    ),
    *("lease", "load", "notice", "owner", "partition", "placement", "policy", "predictability"),
    *("prediction", "preempt", "price", "priority", "quota", "rank", "recipe", "record", "release", "replay"),
    *(
        "requeue",
        "role",
        "rule",
        "seed",
        "setting",
        "shadow",
        "share",
        "signal",
        "site",
        "standby",
        "strategy",
    ),
    *("synthetic", "token", "trace", "workload"),
)
"""Words of the field in help. A new one is added here, and the test fails until the glossary has it."""
PLAIN = {
    *("CPU", "CSV", "JSON", "NVIDIA", "POST", "TOML", "UTC"),
    *("ALL", "BEGIN", "END", "FAIL", "REQUEUE", "UNLIMITED"),  # as sbatch has them
    *("ATTEMPT", "CARD", "CLUSTER", "MODEL", "PATH", "PROFILE", "RANK"),  # placeholders within others
}
"""Capitalised words that are no terms of the field."""


@pytest.fixture(scope="module")
def glossary() -> dict[str, str]:
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return dict(rows[1:])


@pytest.fixture(scope="module")
def prose() -> str:
    """Sentences of help: of all verbs and sub-verbs, and of their options."""
    texts = [cli.help or ""]

    def add(command: click.Command) -> None:
        texts.extend((command.name or "", (command.help or "").partition("Example:")[0]))
        for one in command.params:
            texts.extend((getattr(one, "help", None) or "", *(option.lstrip("-") for option in one.opts)))
        for child in command.commands.values() if isinstance(command, click.Group) else ():
            add(child)

    for verb in cli.list_commands(click.Context(cli)):
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        add(command)
    return " ".join(" ".join(texts).split())


@pytest.fixture(scope="module")
def metavars() -> set[str]:
    """Placeholders of values, which help explains in place."""
    found = set[str]()

    def add(command: click.Command) -> None:
        for one in command.params:
            words = f"{one.metavar or ''} {one.name if isinstance(one, click.Argument) else ''}"
            found.update(re.findall(r"[A-Z]+", words.upper()))
        for child in command.commands.values() if isinstance(command, click.Group) else ():
            add(child)

    for verb in cli.list_commands(click.Context(cli)):
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        add(command)
    return found


def test_words_of_the_field_are_in_help_and_in_the_glossary(glossary: dict[str, str], prose: str) -> None:
    known = {word.lower() for entry in glossary for word in re.split(r", | \(", entry)}
    stems = {term: re.escape(term).replace(r"\ ", "[ -]") for term in TERMS}
    unused = [term for term, stem in stems.items() if not re.search(rf"\b{stem}", prose, re.IGNORECASE)]
    assert unused == [], "help no longer uses these"
    assert [term for term in TERMS if term not in known] == []


def test_abbreviations_of_help_are_in_the_glossary(
    glossary: dict[str, str], prose: str, metavars: set[str]
) -> None:
    known = {word for entry in glossary for word in re.findall(r"\b[A-Z]{2,}\b", entry)}
    plain = re.sub(r"--[\w-]+|\$\w+|#\w+|SIG\w+", " ", prose)
    found = {word.removesuffix("s") for word in re.findall(r"(?<![\w-])[A-Z]{2,}s?\b(?![-_])", plain)}
    assert sorted(found - known - PLAIN - metavars) == []


def test_glossary_is_sorted_and_has_each_word_once(glossary: dict[str, str]) -> None:
    words = re.findall(r"^\| (.+?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)[1:]
    assert words == sorted(words, key=str.lower)
    assert len(words) == len(glossary)
    assert all(meaning.strip() for meaning in glossary.values())
