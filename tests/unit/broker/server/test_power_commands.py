"""An operator's commands that power nodes up and down, run in the background of the broker."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec
import pytest

from rlsched.broker.events import PowerDone, PowerNode
from rlsched.broker.nodes.sleepers import SleepPlan
from rlsched.broker.server.power_commands import AT_ONCE, PowerCommands, PowerSettings
from rlsched.cli.main import run
from rlsched.cli.operators.sleeping import sleep_plan
from rlsched.errors import InputError

SLEEP = SleepPlan(plan=sleep_plan(None, "10m"), suspend_timeout_s=30.0, resume_timeout_s=30.0)
BOTH = ("--suspend-cmd", "x", "--resume-cmd", "y")


def commands(program: str, **more: float) -> PowerCommands:
    """Both commands run this Python program with the node's name."""
    words = f'{sys.executable} -c "{program}"'
    sleep = msgspec.structs.replace(SLEEP, **more)
    return PowerCommands(PowerSettings(suspend_cmd=words, resume_cmd=words, sleep=sleep))


def finished(power: PowerCommands, count: int) -> list[PowerDone]:
    found: list[PowerDone] = []
    deadline = time.monotonic() + 60.0
    while len(found) < count:
        assert time.monotonic() < deadline
        found += power.step()
        time.sleep(0.005)
    return found


def test_command_receives_the_node_name_and_its_result_is_reported(tmp_path: Path) -> None:
    power = commands(f"import sys, pathlib; pathlib.Path('{tmp_path}', sys.argv[1]).touch()")
    power.order(PowerNode("n7", "suspend"))
    assert finished(power, 1) == [PowerDone("n7", "suspend", "")]
    assert (tmp_path / "n7").exists()


def test_failed_command_reports_its_last_line_and_a_slow_one_is_killed() -> None:
    power = commands("import sys; print('x', flush=True); sys.exit('no \x1b[31mchassis ' + sys.argv[1])")
    power.order(PowerNode("n7", "resume"))
    (told,) = finished(power, 1)
    assert told.error.startswith("exit code 1: no ")
    assert "\x1b" not in told.error
    assert told.error.endswith("chassis n7")
    power = commands("import time; time.sleep(600)", resume_timeout_s=0.1)
    power.order(PowerNode("n7", "resume"))
    assert finished(power, 1) == [PowerDone("n7", "resume", "took too long and was killed")]


def test_missing_command_fails() -> None:
    settings = PowerSettings(suspend_cmd="/no/such/thing", resume_cmd="true", sleep=SLEEP)
    power = PowerCommands(settings)
    power.order(PowerNode("n7", "suspend"))
    assert finished(power, 1) == [PowerDone("n7", "suspend", "cannot be run: No such file or directory")]


def test_commands_of_a_node_run_in_order_and_repeated_ones_once(tmp_path: Path) -> None:
    said = tmp_path / "said"
    power = commands(f"import sys; open('{said}', 'a').write(sys.argv[1] + ' ')")
    for order in ("suspend", "suspend", "resume", "resume"):
        power.order(PowerNode("n7", order))  # type: ignore[arg-type]
    assert finished(power, 2) == [PowerDone("n7", "suspend", ""), PowerDone("n7", "resume", "")]
    assert said.read_text() == "n7 n7 "
    for number in range(AT_ONCE + 2):
        power.order(PowerNode(f"m{number}", "resume"))
    assert len(power._running) == AT_ONCE
    assert {one.node for one in finished(power, AT_ONCE + 2)} == {f"m{n}" for n in range(AT_ONCE + 2)}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--suspend-cmd", "x"], "--suspend-cmd: use it together with --resume-cmd"),
        (["--resume-cmd", "x"], "--resume-cmd: use it together with --suspend-cmd"),
        (["--suspend-cmd", "x", "--resume-cmd", ""], "--resume-cmd: expected a command"),
        (["--suspend-cmd", "'x", "--resume-cmd", "y"], '--suspend-cmd "\'x": No closing quotation'),
        (
            ["--suspend-cmd", "x", "--resume-cmd", "y", "--suspend-idle", "soon"],
            "--suspend-idle: expected a time",
        ),
        (
            ["--suspend-cmd", "x", "--resume-cmd", "y", "--resume-timeout", "off"],
            "--resume-timeout: expected a time",
        ),
        (["--suspend-cmd", "x", "--resume-cmd", "y", "--suspend-plan", "/no/file"], "/no/file"),
    ],
)
def test_invalid_settings_are_one_line(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["broker", "--keys", str(tmp_path), *options]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_plan_is_the_table_of_a_models_file(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text('[power_down]\nover = "1h"\nbuffer_nodes = 3\n')
    assert sleep_plan(tmp_path / "m.toml", "1m").rule.buffer_nodes == 3
    (tmp_path / "m.toml").write_text("[power_down]\nbuffer = 3\n")
    with pytest.raises(InputError, match="did you mean"):
        sleep_plan(tmp_path / "m.toml", "1m")
