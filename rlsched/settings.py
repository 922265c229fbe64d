"""Reads and writes typed settings as TOML. Errors name the setting and the most similar known setting."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec

from rlsched.errors import InputError

S = TypeVar("S", bound=msgspec.Struct)
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class Seconds(float):
    """A duration in seconds. In a file, it is a number, or text with a unit: `90s`, `30m`, `12h`, `1.5d`."""

    @classmethod
    def parse(cls, value: Any) -> Seconds:
        """Parse a duration.

        Raises:
            ValueError: the value is not a duration.
        """
        if isinstance(value, str):
            found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", value)
            if found is None:
                raise ValueError(f"expected a time such as 90s, 30m, 12h or 1.5d, got {value!r}")
            return cls(float(found[1]) * _UNIT_S[found[2]])
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise ValueError(f"expected a time such as 90s or 12h, or a number of seconds, got {value!r}")
        return cls(value)

    @property
    def text(self) -> str:
        """Return the duration as text in the largest unit that gives a whole number: `90s`, `2h`."""
        for unit, size_s in reversed(_UNIT_S.items()):
            if self >= size_s and self % size_s == 0:
                return f"{int(self // size_s)}{unit}"
        return f"{self:g}s"


def read_table(path: str | Path, what: str) -> dict[str, Any]:
    """Read the table of a TOML file.

    Raises:
        InputError: the file cannot be read (the message names the kind of file, `what`), or is not TOML.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot read this {what}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected UTF-8 text (TOML), got other bytes") from error
    return parse_table(text, str(path))


def parse_table(text: str, where: str) -> dict[str, Any]:
    """Parse a TOML text. Errors name the source `where`.

    Raises:
        InputError: the text is not TOML.
    """
    import tomllib  # `rlsched submit` imports this module, and reads no TOML

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where}: not valid TOML: {error}") from error


def convert_settings(table: Mapping[str, Any], kind: type[S], where: str, also: tuple[str, ...] = ()) -> S:
    """Convert a table to settings of type `kind`.

    Args:
        table: As parsed from TOML.
        kind: Type of the settings.
        where: Source to name in errors, such as the file.
        also: Keys of the file that are not settings of `kind`. Errors list these keys as known keys, too.

    Raises:
        InputError: a setting is unknown or has the wrong type; the message has the path of the setting, what
            was expected, and what was found.
    """
    try:
        return msgspec.convert(table, kind, dec_hook=_hook, strict=True)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {_in_words(str(error), kind, also)}") from None


def _hook(kind: type, value: Any) -> Any:
    if kind is Seconds:
        return Seconds.parse(value)
    raise TypeError(kind)


def encode_time(value: Any) -> str:
    """Encode a duration as text. Used as the `enc_hook` of msgspec.

    Raises:
        TypeError: the value is not a duration.
    """
    if isinstance(value, Seconds):
        return value.text
    raise TypeError(f"cannot encode {type(value).__name__}")


def _in_words(error: str, kind: type[msgspec.Struct], also: tuple[str, ...]) -> str:
    """Convert an error of msgspec to a message that names the setting and the most similar known setting."""
    text, _, at = error.partition(" - at `$")
    path = at.rstrip("`").strip(".")
    found = re.search(r"unknown field `(\w+)`", text)
    if found is None:
        return f"{path}: {text[0].lower()}{text[1:]}" if path else text[0].lower() + text[1:]
    import difflib

    known = [*(() if path else also), *_names_at(kind, path)]
    near = difflib.get_close_matches(found[1], known, 1)
    meant = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
    return f"unknown setting {'.'.join(part for part in (path, found[1]) if part)!r}{meant}"


def _names_at(kind: type[msgspec.Struct], path: str) -> tuple[str, ...]:
    """Return the names of the settings that the table at a path can have."""
    for name in re.sub(r"\[.*?\]", "", path).split(".") if path else ():
        field = next(one for one in msgspec.structs.fields(kind) if one.name == name)
        parts = get_args(field.type) or (field.type,)
        kind = next(part for part in parts if isinstance(part, type) and issubclass(part, msgspec.Struct))
    return kind.__struct_fields__


def as_table(settings: msgspec.Struct) -> dict[str, Any]:
    """Return settings as plain data without default values. A sub-table is omitted only if it is None."""
    made: dict[str, Any] = {}
    for field in msgspec.structs.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, msgspec.Struct):
            made[field.name] = as_table(value)
        elif value != field.default and value is not None:
            made[field.name] = _plain(value)
    return made


def _plain(value: Any) -> Any:
    if isinstance(value, Seconds):
        return value.text if value.is_integer() else float(value)
    return list(value) if isinstance(value, tuple) else value


def as_toml(table: Mapping[str, Any]) -> str:
    """Return plain data as TOML: one line per entry, with inline tables."""
    return "".join(f"{name} = {_value(value)}\n" for name, value in table.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        inside = ", ".join(f"{name} = {_value(one)}" for name, one in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return ("inf" if value > 0 else "-inf") if math.isinf(value) else repr(value)
    return msgspec.json.encode(value).decode() if isinstance(value, str) else str(value)
