"""Help is quick, imports little, lists every verb, and each verb has an example."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from rlsched.cli.verbs import SUMMARIES, extra_for

HEAVY = (
    "torch",
    "numba",
    "gymnasium",
    "zmq",
    "stable_baselines3",
    "tensorboard",
    "pyarrow",
    "matplotlib",
    "sklearn",
)
VERBS = sorted(point.name for point in entry_points(group="rlsched.commands"))
ASK_FOR_HELP = """
import sys
import click
from rlsched.cli.main import cli, run

def ask(args, command):
    print("##", *args)
    assert run([*args, "--help"]) == 0
    if isinstance(command, click.Group) and args:
        for name, child in command.commands.items():
            ask([*args, name], child)

args = sys.argv[1:]
ask(args, cli.get_command(click.Context(cli), args[0]) if args else cli)
print("HEAVY", *[name for name in %r if name in sys.modules])
""" % (HEAVY,)  # noqa: UP031


def ask_for_help(*args: str) -> tuple[list[str], str]:
    """Help pages of a verb and its sub-commands, and the heavy modules imported for them."""
    done = subprocess.run(
        [sys.executable, "-c", ASK_FOR_HELP, *args], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages, _, heavy = done.stdout.rpartition("HEAVY")
    return pages.split("## ")[1:] or [pages], heavy.strip()


def test_main_help_lists_every_verb_and_imports_nothing_heavy() -> None:
    (page,), heavy = ask_for_help()
    assert heavy == ""
    assert "Example" in page
    for verb in VERBS:
        assert f"\n  {verb} " in page
    assert "From other packages" not in page


def test_every_verb_has_a_summary() -> None:
    assert sorted(SUMMARIES) == VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example_and_imports_nothing_heavy(verb: str) -> None:
    pages, heavy = ask_for_help(verb)
    assert heavy == ""
    for page in pages:
        assert "Usage: rlsched" in page
        assert "Example" in page, page
        assert f"rlsched {verb}" in page.split("Example", 1)[1], f"the example does not show the verb: {page}"


def test_main_help_takes_less_than_a_third_of_a_second() -> None:
    took = []
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-m", "rlsched.cli.main", "--help"], stdout=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        took.append(usage.ru_utime + usage.ru_stime)
        assert child.returncode == 0
    assert min(took) < 0.3, f"CPU seconds: {took}"


def test_extras_name_the_packages_of_a_verb() -> None:
    assert extra_for("torch.nn", "train") == "train"
    assert extra_for("zmq", "node") == "node"
    assert extra_for("zmq", "broker") == "broker"
    assert extra_for("numba", "evaluate") == "broker"
    assert extra_for("matplotlib.axes", "trace") == "report"
    assert extra_for("json", "trace") is None
