"""Parses the options of `rlsched broker` that power idle nodes down and up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlsched.errors import InputError
from rlsched.power_down.plan import PowerDownPlan
from rlsched.settings import Seconds, convert_settings, read_table

if TYPE_CHECKING:
    from rlsched.broker.nodes.sleepers import SleepPlan
    from rlsched.broker.server.power_commands import PowerSettings


def power_settings(suspend_cmd: str | None, resume_cmd: str | None, sleep: SleepPlan) -> PowerSettings | None:
    """Return the commands that power nodes down and up, and when to run them; None: no command is given.

    Raises:
        InputError: only one command is given, a command is empty, or a time is infinite.
    """
    from rlsched.broker.events import PowerNode
    from rlsched.broker.server.power_commands import PowerSettings

    if suspend_cmd is None and resume_cmd is None:
        return None
    if suspend_cmd is None or resume_cmd is None:
        given, other = ("--resume", "--suspend") if suspend_cmd is None else ("--suspend", "--resume")
        raise InputError(
            f"{given}-cmd: use it together with {other}-cmd, because a suspended node must be resumed"
        )
    for option, value_s in (
        ("--suspend-timeout", sleep.suspend_timeout_s),
        ("--resume-timeout", sleep.resume_timeout_s),
    ):
        if value_s == float("inf"):
            raise InputError(f"{option}: expected a time such as 60s, got off")
    found = PowerSettings(suspend_cmd=suspend_cmd, resume_cmd=resume_cmd, sleep=sleep)
    for order in ("suspend", "resume"):
        found.words(PowerNode("n0", order))
    return found


def sleep_plan(path: Path | None, idle: str) -> PowerDownPlan:
    """Return the plan that decides how many nodes are powered down.

    Args:
        path: TOML file with a table `power_down`; None: power nodes down after the time `idle`.
        idle: Text of `--suspend-idle`, used without a file.

    Raises:
        InputError: the file or the time is invalid.
    """
    if path is None:
        try:
            idle_s = Seconds.parse(idle)
        except ValueError as error:
            raise InputError(f"--suspend-idle: {error}") from error
        return PowerDownPlan(
            forecast="persistence",
            slot=Seconds(60.0),
            over=Seconds(60.0),
            falling=Seconds(0.0),
            idle=idle_s,
            buffer_nodes=0,
            wake_buffer_nodes=0,
            ramp_nodes=0,
            review=Seconds(15.0),
        )
    table = read_table(path, "models file").get("power_down", {})
    plan = convert_settings(table, PowerDownPlan, f"{path}: power_down")
    plan.check(f"{path}: power_down")
    return plan
