"""Plain error texts for bad option values: `--gpus: expected a whole number from 1 to 64, got 'x'`."""

from __future__ import annotations

import re
from typing import Any, Final

import click
from click.types import FloatParamType, IntParamType

from rlsched.cli.shared.slurms_options import INSTEAD

_GOT: Final = re.compile(r"('.*'|\".*\"|\S+) (?:is not|does not match) .*", re.DOTALL)
"""Pattern of click's error messages about a bad value; its group matches the value."""


def message_of(error: click.UsageError) -> str:
    """Return the message of a usage error. For a bad value, name the option and the expected values."""
    if isinstance(error, click.NoSuchOption):
        return _slurms(error) or error.format_message().rstrip(".") + _other_case(error)
    param = error.param if isinstance(error, click.BadParameter) else None
    if param is None or isinstance(error, click.MissingParameter):
        return error.format_message()
    said, found, expected = error.message, _GOT.fullmatch(error.message), expected_by(param.type)
    if found and expected:
        said = f"expected {expected}, got {found[1]}"
    return f"{_name(param)}: {said.rstrip('.')}"


def _slurms(error: click.NoSuchOption) -> str:
    """Return the message for an option of Slurm that the verb lacks; "" for any other option."""
    verb = (error.ctx is not None and error.ctx.command.name) or ""
    instead = INSTEAD.get(verb, {}).get(error.option_name)
    return f"No such option {error.option_name!r}; {instead}" if instead else ""


def _other_case(error: click.NoSuchOption) -> str:
    """Return a hint if an unknown option exists in the other case, such as `-N` for `-n`; else ""."""
    other = error.option_name.swapcase()
    known = error.ctx is not None and any(other in one.opts for one in error.ctx.command.params)
    return f"; did you mean {other}?" if known else ""


def expected_by(kind: click.ParamType[Any]) -> str:
    """Return a description of the values of a parameter type; "" if its own errors describe the values."""
    if isinstance(kind, click.Choice):
        *others, last = [str(one) for one in kind.choices]
        return f"{', '.join(others)} or {last}" if others else last
    if isinstance(kind, click.DateTime):
        from datetime import datetime

        *others, last = [datetime(2026, 11, 1, 13, 30).strftime(one) for one in kind.formats]
        return f"a time such as {', '.join(others)} or {last}"
    if not isinstance(kind, IntParamType | FloatParamType):
        return str(getattr(kind, "expected", ""))
    number = "a whole number" if isinstance(kind, IntParamType) else "a number"
    if not isinstance(kind, click.IntRange | click.FloatRange):
        return number
    least, most = kind.min, kind.max
    words = [number]
    if least is not None:
        words.append(f"{'above' if kind.min_open else 'from'} {least:,}")
    if most is not None:
        up_to = "to" if least is not None and not kind.min_open else "up to"
        words.append(f"{'below' if kind.max_open else up_to} {most:,}")
    return " ".join(words)


def _name(param: click.Parameter) -> str:
    if isinstance(param, click.Option):
        return next((name for name in param.opts if name.startswith("--")), param.opts[0])
    return param.human_readable_name.strip("[].")
