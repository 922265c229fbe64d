"""A bad value of an option is one plain line: the option, the expected values, and the given one."""

from __future__ import annotations

import click
import pytest

from rlsched.cli.main import cli, run
from rlsched.cli.points import points
from rlsched.cli.shared.bad_values import expected_by, message_of


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "submit --gpus x -- true",
            "--gpus: expected [TYPE:]COUNT, such as 2 or a100:2, with a COUNT from 1 to 65,536, got 'x'",
        ),
        (
            "submit -G 0 -- true",
            "--gpus: expected [TYPE:]COUNT, such as 2 or a100:2, with a COUNT from 1 to 65,536, got 0",
        ),
        ("submit -N two -- true", "--nodes: expected a whole number from 1, got 'two'"),
        ("submit --share maybe -- true", "--share: expected auto, yes or no, got 'maybe'"),
        ("submit --time-limit 0 -- true", "--time-limit: expected a number above 0, got 0.0"),
        ("submit --speed-energy 2 -- true", "--speed-energy: expected a number from 0 to 1, got 2.0"),
        ("queue --timeout-s 0", "--timeout-s: expected a number above 0 up to 3,600, got 0.0"),
        ("evaluate --load x", "--load: expected a number, got 'x'"),
        ("node --gpus x", "--gpus: expected a whole number, got 'x'"),
        ("cancel x", "JOB: expected the number of a job, or ARRAY_TASK such as 17_3, got 'x'"),
        ("submit -g 1 -- true", "No such option '-g'; did you mean -G?"),
        ("submit -y 1 -- true", "No such option '-y'"),
        (
            "cancel --signal=KILL 2",
            "No such option '--signal'; jobs get SIGTERM, then SIGKILL after the grace time, and no other",
        ),
        (
            "update NodeName=n1 State=DRAIN",
            "NodeName: use `rlsched node drain NAME --reason TEXT` or `rlsched node resume NAME`",
        ),
        (
            "update PartitionName=debug State=DOWN",
            "PartitionName: partitions are VCs here, which have no state; use `rlsched node drain`",
        ),
        (
            "queue --start",
            "No such option '--start'; the columns starts and ends are forecasts, and `rlsched why JOB` "
            "explains one job",
        ),
        ("nodes -s", "No such option '-s'; use `rlsched status`, which counts nodes by state"),
        ("history -P", "No such option '-P'; use --csv"),
        ("quota set gpu bob", "KIND: expected user, account or vc, got 'gpu'"),
    ],
)
def test_a_bad_value_is_said_plainly(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {said} (see: rlsched ")
    assert err.count("\n") == 1


def every_option() -> list[tuple[str, click.Option]]:
    """The options of all verbs, with their paths."""
    found: list[tuple[str, click.Option]] = []

    def look(path: str, command: click.Command) -> None:
        found.extend((path, one) for one in command.params if isinstance(one, click.Option))
        for name, child in command.commands.items() if isinstance(command, click.Group) else ():
            look(f"{path} {name}", child)

    for verb in points():
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        look(verb, command)
    return found


def test_no_verb_shows_the_words_of_click() -> None:
    odd = 0
    for path, option in every_option():
        if option.is_flag or isinstance(option.type, click.Path):
            continue
        try:
            option.type_cast_value(click.Context(click.Command(path)), ("x",) if option.multiple else "x")
        except click.BadParameter as error:
            odd += 1
            said = message_of(error)
            assert ": expected " in said, (path, said)
            assert said.endswith("got 'x'"), (path, said)
            assert not {"valid", "range"} & set(said.split()), (path, said)
    assert odd > 50


def test_ranges_in_words() -> None:
    assert expected_by(click.IntRange(max=5)) == "a whole number up to 5"
    assert expected_by(click.FloatRange(0, 1, max_open=True)) == "a number from 0 below 1"
    assert expected_by(click.Choice(["a"])) == "a"
    assert expected_by(click.STRING) == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["queue", "-o", "%.18i %.9P %j %T"],
            "--format '%.18i %.9P %j %T': expected names of columns, such as -o job,vc,name,state",
        ),
        (["nodes", "-o", "%n %G"], "--format '%n %G': expected names of columns, such as -o name,gpus"),
        (["queue", "-o", "%M"], "--format '%M': expected names of columns, such as -o job,name,user"),
        (["history", "-o", "JobID,Elapsed"], "column 'JobID': it is job here; expected one of"),
        (
            ["history", "-o", "job,Elapsed"],
            "column 'Elapsed': it is gpu_s, GPU-seconds, here; expected one of",
        ),
        (
            ["history", "-s", "TIMEOUT"],
            "--state 'timeout': such jobs are failed here, and the column reason has",
        ),
    ],
)
def test_slurms_names_are_translated(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")
