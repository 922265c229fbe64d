"""The settings of a submission follow from their declaration: messages, facts, keywords, options, pages."""

from __future__ import annotations

import inspect
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, get_type_hints

import click
import msgspec
import pytest

from rlsched.broker.base.entries import JobSubmitted, JobUpdated
from rlsched.broker.journal.journal import Journal
from rlsched.broker.machine.submissions import wrong, wrong_change
from rlsched.cli.users.batch_script import directives
from rlsched.cli.users.job_orders import UpdateCommand, update
from rlsched.cli.users.submit import run, submit
from rlsched.client.client import Client
from rlsched.client.submission_types import Changes, JobAsked
from rlsched.wire.declared import Option, Setting, declared
from rlsched.wire.messages import DryRun, Submit, Submitted, Tasks, Update
from rlsched.wire.messages.job_settings import JobChanges, JobNeeds, JobSettings
from tests.support.broker.hand import make

ROOT = Path(__file__).parents[3]
SETTINGS = declared(Submit)
CHANGES = {name for name, one in SETTINGS.items() if one.setting.changes}
NO_OPTION = {"token", "command", "singleton"}
"""Settings without an option of their own: made, an argument, and a word of `--dependency`."""
COPIED: dict[str, Any] = {
    "token": "t",
    "command": ["true", "x"],
    "num_gpus": 2,
    "num_cpus": 3,
    "memory_mib": 5,
    "gpu_memory_mib": 7,
    "exclusive": True,
    "vc": "v",
    "time_limit_s": 11.0,
    "preemptible": True,
    "workload": "bert-base-squad-b8",
    "name": "n",
    "user": "me",
    "env": {"A": "1"},
    "cwd": "/tmp",
    "output": "out-%j.txt",
    "error": "/tmp/%x.txt",
    "open_mode": "append",
    "begin_s": 1e9,
    "tasks": [Tasks(1, 4)],
    "array_limit": 2,
    "launcher": "torchrun",
    "slack_s": 14.0,
    "grace_s": 13.0,
    "speed_energy": 0.5,
    "lost_after_s": 100.0,
    "share": "yes",
    "priority": "low",
    "notify": "end",
}
RESOLVED = {"account", "gpu_types", "preferred_types", "depends_on"}
"""Settings that the broker resolves before it journals them."""


def test_every_field_of_a_submission_is_declared() -> None:
    assert list(SETTINGS) == list(Submit.__struct_fields__)


def test_keywords_are_those_declared() -> None:
    """Type checkers need the keywords in writing."""
    keywords = {one.keyword: one.type for one in SETTINGS.values() if one.name != "command"}
    written = get_type_hints(JobAsked)
    assert set(written) == set(keywords)
    same = {name for name, kind in written.items() if kind == keywords[name]}
    assert set(written) - same == {
        *("array", "token", "notify"),  # as text; None: made; as a list
        *("env", "cwd"),  # None: the default
        *("gpu_types", "preferred_types", "depends_on"),  # any sequence
    }


def test_keywords_of_changes_are_those_declared() -> None:
    fields = get_type_hints(JobChanges)
    assert set(fields) == CHANGES | {"job", "tasks"}
    assert set(get_type_hints(Changes)) == CHANGES | {"singleton"}
    for name in CHANGES:
        assert fields[name] == SETTINGS[name].type | None, name
    assert set(JobUpdated.__struct_fields__) == set(fields)
    assert set(Update.__struct_fields__) == {*fields, "singleton"}


def described() -> dict[str, str]:
    """The arguments of `Client.submit` with their descriptions, from its docstring."""
    text = inspect.cleandoc(Client.submit.__doc__ or "").partition("Args:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in found}


def test_documents_describe_every_keyword_in_the_same_words() -> None:
    page = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")
    table = page.partition("### Arguments of `submit`")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]* \| (.*) \|$", table, re.MULTILINE))
    assert rows == described()
    assert list(rows) == ["command", *get_type_hints(JobAsked)]


def test_a_dry_run_has_the_settings_on_which_forecasts_depend() -> None:
    needs = set(JobNeeds.__struct_fields__)
    assert set(DryRun.__struct_fields__) == needs | {"tonight_s", "command"}
    assert set(inspect.signature(Client.dry_run).parameters) == needs | {"self", "tonight_s", "command"}


def options_of(command: click.Command) -> dict[str, click.Option]:
    return {name: one for one in command.params if isinstance(one, click.Option) for name in one.opts}


def test_every_setting_is_an_option_of_the_verbs_that_give_it() -> None:
    for name, one in SETTINGS.items():
        assert bool(one.setting.options) == (name not in NO_OPTION), name
        assert any(option.update for option in one.setting.options) == (name in CHANGES), name
        for option in one.setting.options:
            for verb, help_text in ((submit, option.help), (run, option.help), (update, option.update)):
                own = options_of(verb).get(option.name)
                if help_text:
                    assert own is not None, option.name
                    assert (own.name, own.help) == (option.dest, help_text)
            if option.help:
                words = [option.name] + ([] if options_of(submit)[option.name].is_flag else ["1"])
                assert directives("x", ["#!/bin/sh", f"#SBATCH {' '.join(words)}"], submit) == (words, [])


def test_an_option_is_read_within_the_range_of_its_setting() -> None:
    for verb, option, odd in (
        (submit, "--speed-energy", "1.5"),
        (submit, "--time-limit", "0"),
        (update, "--array-limit", "-1"),
        (submit, "--share", "maybe"),
        (submit, "--nodes", "0"),
    ):
        with pytest.raises(click.BadParameter):
            verb.make_context("x", [option, odd, "1"])


def test_slurms_words_of_a_change_are_declared() -> None:
    for name, one in SETTINGS.items():
        for word in one.setting.scontrol.split():
            assert name in CHANGES
            assert UpdateCommand.words[word] == one.setting.options[0].name


@pytest.mark.parametrize("name", [name for name, one in SETTINGS.items() if one.setting.least is not None])
def test_a_number_out_of_its_range_is_refused(name: str) -> None:
    setting = SETTINGS[name].setting
    assert setting.least is not None
    good = Submit(token="t", command=["true"], num_gpus=1, tasks=[Tasks(0, 1)])
    assert wrong(good) == ""
    assert wrong(msgspec.structs.replace(good, **{name: setting.least - 1})).startswith(f"{name} must be ")
    if name in CHANGES:
        assert wrong_change(Update(job=1, **{name: setting.least - 1})).startswith(f"{name} must be ")  # type: ignore[arg-type]


def test_the_error_of_a_number_has_its_range() -> None:
    assert Setting(least=1, most=65_536).out_of_range("n", 0) == "n must be 1 to 65,536, got 0"
    assert Setting(least=0).out_of_range("n", 0.0) == "n must be above 0, got 0"
    assert Setting(least=0, most=1, expects="a share").out_of_range("n", 1.5) == "n must be a share, got 1.5"
    assert Setting(least=0, most=1).out_of_range("n", float("nan")) == "n must be 0 to 1, got nan"
    assert Setting(least=0).out_of_range("n", None) == Setting().out_of_range("n", -1) == ""


def test_an_option_is_named_by_its_first_long_name() -> None:
    option = Option("-D --cwd --chdir DIR")
    assert (option.name, option.dest, option.metavar) == ("--cwd", "cwd", "DIR")
    assert Option("--hold").metavar is None


def test_every_setting_of_a_submission_is_journalled(tmp_path: Path) -> None:
    assert set(COPIED) | RESOLVED == set(JobSettings.__struct_fields__)
    defaults = {name: one.default for name, one in SETTINGS.items()}
    assert not [name for name, value in COPIED.items() if value == defaults[name]]
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        reply = make(journal).ask(Submit(**COPIED))
        assert isinstance(reply, Submitted), reply
        (fact,) = (row.entry for row in journal.rows() if isinstance(row.entry, JobSubmitted))
    assert {name: getattr(fact, name) for name in COPIED} == COPIED
    assert set(JobSettings.__struct_fields__) <= set(msgspec.to_builtins(fact))  # for older versions


def test_the_keys_of_older_journals_are_fields_of_the_facts() -> None:
    """Unknown keys are ignored when a fact is read: a renamed field would lose its values."""
    kinds = {"job_submitted": JobSubmitted, "job_updated": JobUpdated}
    seen = set[str]()
    for path in (ROOT / "tests/samples/journal").glob("*.sqlite"):
        with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as rows:
            for kind, payload in rows.execute("SELECT kind, payload FROM entries"):
                if kind in kinds:
                    keys = set(msgspec.msgpack.decode(payload)) - {"type", "on_lost"}  # replaced in version 6
                    assert keys <= set(kinds[kind].__struct_fields__)
                    seen |= keys
    assert {"num_gpus", "priority", "time_limit_s"} <= seen
