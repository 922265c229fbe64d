"""Declarations of settings: range of a message's field, when it may change, its command-line options."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

import msgspec


class Option(NamedTuple):
    """A command-line option that gives a setting; scripts give it in `#RLSCHED` and `#SBATCH` directives.

    Attributes:
        usage: All names, and the value as help shows it, such as `-t --time TIME`.
        help: Help of `rlsched submit` and `run`; "": not an option there.
        update: Help of `rlsched update`; "": not an option there.
        kind: How it is read. "": a flag, a choice, else text that the verb parses; `number`: within the range
            of the field; `count`: from 1; `gpus`: likewise, or with a type as in Slurm.
        default: Text if it is not given; "": the field's default, if that is a text or a choice.
    """

    usage: str
    help: str = ""
    update: str = ""
    kind: Literal["", "number", "count", "gpus"] = ""
    default: str = ""

    @property
    def names(self) -> list[str]:
        """All names."""
        return [one for one in self.usage.split() if one.startswith("-")]

    @property
    def metavar(self) -> str | None:
        """The value as help shows it; None: by its type."""
        return next((one for one in self.usage.split() if not one.startswith("-")), None)

    @property
    def name(self) -> str:
        """The first long name."""
        return next(one for one in self.names if one.startswith("--"))

    @property
    def dest(self) -> str:
        """Name of its value in the verb."""
        return self.name[2:].replace("-", "_")


class Setting:
    """A setting of a job, declared in the type of its field: `Annotated[int, Setting(...)]`.

    Args:
        options: Command-line options that give it, the main one first.
        least: Lowest value.
        most: Highest value; None: no highest, and `least` itself is too low.
        expects: Range in words; "": the numbers.
        characters: Longest text; 0: not limited.
        changes: When it may change: never; while the job waits; `task`: also for single tasks of an array,
            before they are jobs; `running`: also while the job has GPUs.
        scontrol: Names in `scontrol update`, separated by spaces.
        keyword: Keyword of `Client.submit`; "": the field's name.
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
        """Return the error of a number, in one line; "" if it is valid or None."""
        if value is None or self.least is None:
            return ""
        if self.most is None:
            is_valid, numbers = value > self.least, f"above {_shown(self.least)}"
        else:
            is_valid = self.least <= value <= self.most
            numbers = f"{_shown(self.least)} to {_shown(self.most)}"
        return "" if is_valid else f"{name} must be {self.expects or numbers}, got {_shown(value)}"


class Declared(NamedTuple):
    """A field with its declaration. `type`: without `Annotated`; `default`: `NODEFAULT` if required."""

    name: str
    type: Any
    default: Any
    setting: Setting

    @property
    def keyword(self) -> str:
        """Keyword of `Client.submit`."""
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
