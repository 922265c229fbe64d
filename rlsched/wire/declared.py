"""Declarations of settings, which are fields of messages: range, allowed changes, command-line options."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

import msgspec


class Option(NamedTuple):
    """A command-line option for a setting. Job scripts set the option in `#RLSCHED` or `#SBATCH` directives.

    Attributes:
        usage: All names of the option, and the placeholder of its value, such as `-t --time TIME`.
        help: Help text for `rlsched submit` and `run`; "": these commands do not have the option.
        update: Help text for `rlsched update`; "": this command does not have the option.
        kind: How the value is parsed. "": a flag, a choice, or a text that the command parses; `number`: a
            number in the range of the field; `count`: an integer from 1; `gpus`: a count, or a count with a
            GPU type as in Slurm.
        default: Text used if the option is not given; "": the field's default, if that is a text or a choice.
    """

    usage: str
    help: str = ""
    update: str = ""
    kind: Literal["", "number", "count", "gpus"] = ""
    default: str = ""

    @property
    def names(self) -> list[str]:
        """All names of the option."""
        return [one for one in self.usage.split() if one.startswith("-")]

    @property
    def metavar(self) -> str | None:
        """Placeholder of the option's value in help texts; None: help derives it from the value's type."""
        return next((one for one in self.usage.split() if not one.startswith("-")), None)

    @property
    def name(self) -> str:
        """The first long name, including its dashes."""
        return next(one for one in self.names if one.startswith("--"))

    @property
    def dest(self) -> str:
        """Name of the option's value among the arguments of the command."""
        return self.name[2:].replace("-", "_")


class Setting:
    """A setting of a job, declared in the type of its field: `Annotated[int, Setting(...)]`.

    Args:
        options: Command-line options for the setting, the main option first.
        least: Lower limit; None: the range is not checked.
        most: Upper limit. A value may equal `least` or `most`. None: there is no upper limit, and the value
            must be above `least`.
        expects: The range in words, for errors; "": the error prints the numbers.
        characters: Maximum length of a text; 0: no limit.
        changes: When the setting can change. "": never; `waiting`: while the job waits; `task`: as `waiting`,
            and also for single tasks of an array that are not jobs yet; `running`: as `task`, and also while
            the job has GPUs.
        scontrol: Names of the setting in `scontrol update`, separated by spaces.
        keyword: Keyword of `Client.submit`; "": the name of the field.
    """

    def __init__(
        self,
        *options: Option,
        least: float | None = None,
        most: float | None = None,
        expects: str = "",
        characters: int = 0,
        changes: Literal["", "waiting", "task", "running"] = "",
        scontrol: str = "",
        keyword: str = "",
    ) -> None:
        self.options, self.least, self.most, self.expects = options, least, most, expects
        self.characters, self.changes, self.scontrol, self.keyword = characters, changes, scontrol, keyword

    def out_of_range(self, name: str, value: float | None) -> str:
        """Return the error for a number outside the range, in one line; "" if the number is valid or None."""
        if value is None or self.least is None:
            return ""
        if self.most is None:
            is_valid, numbers = value > self.least, f"above {_shown(self.least)}"
        else:
            is_valid = self.least <= value <= self.most
            numbers = f"{_shown(self.least)} to {_shown(self.most)}"
        return "" if is_valid else f"{name} must be {self.expects or numbers}, got {_shown(value)}"


class Declared(NamedTuple):
    """A field with its declaration.

    `type` is the field's type without `Annotated`; `default` is `NODEFAULT` if the field is required.
    """

    name: str
    type: Any
    default: Any
    setting: Setting

    @property
    def keyword(self) -> str:
        """Keyword of `Client.submit` for this field."""
        return self.setting.keyword or self.name


@cache
def declared(kind: type[msgspec.Struct]) -> Mapping[str, Declared]:
    """Return the declared settings of a message by field name, in the order of the fields."""
    return {
        one.name: Declared(one.name, one.type.__origin__, one.default, setting)
        for one in msgspec.structs.fields(kind)
        for setting in getattr(one.type, "__metadata__", ())
    }


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
