"""`Policy`: a scheduling policy as data, made from a name, a TOML file, or settings."""

from __future__ import annotations

import difflib
import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rlsched.decide.own import (
    NO_PATHS,
    content_of,
    decides_itself,
    file_of,
    is_inline,
    is_own,
    name_of,
    rule_in_copy,
)
from rlsched.decide.policies.presets import PRESETS, Preset
from rlsched.decide.settings import Settings, check
from rlsched.errors import InputError, UnknownPolicyError
from rlsched.settings import as_table, as_toml, convert_settings, parse_table, read_table

if TYPE_CHECKING:
    from rlsched.decide.rules.steps import CompiledRule


POLICY_FILE: Final = "policy.toml"
"""Name of the policy in the folder of a trained policy."""


def _digest(table: Mapping[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(table)).hexdigest()[:12]


class Policy:
    """A scheduling policy.

    Args:
        base: Name of the preset (`presets`) whose settings are the defaults; None: no preset.
        name: Display name; default: the preset's name if no setting is changed.
        **settings: Fields of `Settings`, as in a TOML file: a table as a dict, a time as text.

    Attributes:
        name: Display name.
        settings: All settings of the policy.

    Raises:
        UnknownPolicyError: there is no such preset.
        InputError: a setting is unknown or wrong; the message names the setting, the value expected and the
            value given.

    >>> Policy("easy", order="area^0.7", reserve_after="1h", predictions="revised").settings.order
    'area^0.7'
    """

    def __init__(self, base: str | None = None, /, *, name: str = "", **settings: Any) -> None:
        preset = _preset(base) if base is not None else None
        table = preset.settings if preset is not None else {}
        self.settings: Settings = _settled(table, settings, f"policy {name or base or 'without a name'!r}")
        plain = preset is not None and self.settings == _settled(table, {}, "")
        self.name: str = name or (base or "" if plain else f"{base or 'policy'}*")

    # ---- parsing -----------------------------------------------------------------------------------

    @classmethod
    def of(cls, text: str | Path | Policy) -> Policy:
        """Parse a policy argument.

        The argument is a preset's name, a TOML file, the folder of a trained policy (also as `ppo:FOLDER`),
        `sb3:PATH`, a Python file, or `FILE.py:NAME`.

        Raises:
            UnknownPolicyError: the text is not a known policy; the message suggests the nearest known name.
            InputError: the file cannot be read, or a setting is wrong.
        """
        if isinstance(text, Policy):
            return text
        base, _, argument = str(text).partition(":")
        is_model = base in ("ppo", "sb3") and bool(argument)
        if isinstance(text, Path) and text.is_dir():
            return cls._trained(text)
        if isinstance(text, Path) or (text.endswith(".toml") and not is_model):
            return cls.read(text)
        if is_own(text):
            return cls(name=name_of(text), rule=text)
        if base == "ppo" and argument:
            return cls._trained(Path(argument)).named(text)
        if base == "sb3" and argument:
            return cls(name=text, rule="sb3", checkpoint=argument)
        if text and text not in PRESETS and Path(text).is_dir():
            return cls._trained(Path(text))
        return cls(text)

    @classmethod
    def _trained(cls, path: Path) -> Policy:
        """Read a policy that `rlsched train` wrote, from its folder or its TOML file."""
        if str(path) in ("default", "untrained") and not path.exists():
            instead = "ppo" if str(path) == "default" else "tuned"
            raise InputError(f"policy 'ppo:{path}' is a name of an earlier version: use {instead!r}")
        if path.suffix == ".zip" or (path / "policy.zip").is_file():
            raise InputError(
                f"{path}: expected the folder of a policy that `rlsched train` wrote, got a network of an "
                "earlier version, which scored the waiting jobs one by one; train again with `rlsched train`"
            )
        return cls.read(path / POLICY_FILE if path.is_dir() else path).named(path.resolve().name)

    @classmethod
    def read(cls, path: str | Path) -> Policy:
        """Read a policy from a TOML file with a preset (such as `base = "easy"`) and changed settings.

        Relative paths are relative to the directory of the file. If a checkpoint or a rule does not exist in
        this directory, its path is relative to the working directory.

        Raises:
            InputError: the file cannot be read, is not TOML, or a setting is unknown or wrong.
        """
        table = read_table(path, "policy")
        _find_files(table, Path(path).parent)
        return cls._of_table(table, Path(path).stem, str(path))

    @classmethod
    def parse(cls, text: str, *, name: str = "", where: str = "policy") -> Policy:
        """Parse a policy from the text of a TOML file.

        Raises:
            InputError: the text is not TOML, or a setting is unknown or wrong.
        """
        return cls._of_table(parse_table(text, where), name, where)

    @classmethod
    def _of_table(cls, table: dict[str, Any], name: str, where: str) -> Policy:
        base = table.pop("base", None)
        if base is not None and not isinstance(base, str):
            raise InputError(f"{where}: base: expected a preset's name, got {base!r}")
        made = cls.__new__(cls)
        try:
            preset = _preset(base) if base is not None else None
        except UnknownPolicyError as error:
            raise UnknownPolicyError(f"{where}: base: {error}") from None
        made.settings = _settled(preset.settings if preset is not None else {}, table, where)
        made.name = name or base or "policy"
        return made

    def changed(self, changes: Sequence[str]) -> Policy:
        """Return a copy of the policy with changed settings: `PATH=VALUE`, such as `share.min_speed=0.5`.

        If a setting differs, a star is added to the name of the copy.

        Raises:
            InputError: a setting is unknown or wrong.
        """
        if not changes:
            return self
        table = as_table(self.settings)
        for change in changes:
            path, equals, text = change.partition("=")
            if not equals:
                raise InputError(f"--set {change}: expected PATH=VALUE, such as share.min_speed=0.5")
            _put(table, path.strip(), _value(text.strip()), f"--set {change}")
        return self._changed_to({}, table, f"policy {self.name!r}, --set")

    def with_settings(self, **settings: Any) -> Policy:
        """Return a copy of the policy with changed settings; a star in its name shows a difference.

        A dict changes a table setting by setting; a struct, such as `Share()`, replaces the table.

        Raises:
            InputError: a setting is unknown or wrong.
        """
        whole = {key: as_table(value) for key, value in settings.items() if isinstance(value, msgspec.Struct)}
        table = {key: value for key, value in as_table(self.settings).items() if key not in whole}
        return self._changed_to(table, settings | whole, f"policy {self.name!r}")

    def named(self, name: str) -> Policy:
        """Return the policy under another name."""
        made = Policy.__new__(Policy)
        made.settings, made.name = self.settings, name
        return made

    def _changed_to(self, table: Mapping[str, Any], changes: Mapping[str, Any], where: str) -> Policy:
        made = Policy.__new__(Policy)
        made.settings = _settled(table, changes, where)
        made.name = self.name if made.settings == self.settings else f"{self.name}*"
        return made

    # ---- output ------------------------------------------------------------------------------------

    @property
    def toml(self) -> str:
        """All settings that differ from their defaults, as TOML that `parse` reads."""
        table = as_table(self.settings) or {"order": "submit"}
        return as_toml(table)

    @cached_property
    def digest(self) -> str:
        """First 12 hexadecimal digits of the SHA-256 of all settings; equal policies have equal digests."""
        return _digest(as_table(self.settings))

    @property
    def policy_id(self) -> str:
        """Policy id in records: a preset's name; for other policies, the name, `@`, and a digest.

        The digest covers all settings, with two exceptions. It contains the content of a user-defined rule's
        file instead of the path. It omits a user's strategy, because the id of a scheduler with dials also
        contains the digest of the strategy.
        """
        plain = self.name in PRESETS and self.settings == Policy(self.name).settings
        table = as_table(self.settings)
        if self.settings.dials not in NO_PATHS:
            del table["dials"]
        if is_own(self.settings.rule):
            with suppress(OSError):
                table["rule"] = f"{name_of(self.settings.rule)} {content_of(self.settings.rule)}"
        return self.name if plain else f"{self.name}@{_digest(table)}"

    @property
    def oracle(self) -> bool:
        """Whether the policy receives the true run times."""
        return self.settings.predictions == "oracle"

    @property
    def scheduler(self) -> str:
        """Name of the scheduler that decides, "" if the settings define a rule."""
        rule = self.settings.rule
        return rule if not is_own(rule) or decides_itself(rule) else ""

    @cached_property
    def rule(self) -> CompiledRule:
        """Return the rule that the settings define.

        Raises:
            InputError: a scheduler decides instead of a rule (`scheduler`), or a user-defined rule cannot be
                loaded.
        """
        if self.scheduler:
            raise InputError(
                f"policy {self.name!r} is not a rule: {self.scheduler!r} decides; choose a policy whose "
                "settings define a rule"
            )
        from rlsched.decide.rules.making import make_rule

        return make_rule(self.settings)

    def check_read(self, *names: str) -> None:
        """Check that the policy changes only settings that its scheduler reads.

        Args:
            *names: The settings that the scheduler reads.

        Raises:
            InputError: a setting outside `names` differs from its value in the scheduler's preset.
        """
        preset = PRESETS.get(self.scheduler)
        usual = as_table(_settled(preset.settings, {}, "")) if preset is not None else {}
        for name, value in as_table(self.settings).items():
            if name not in ("rule", *names) and value != usual.get(name):
                got = "the content of a file" if isinstance(value, str) and is_inline(value) else repr(value)
                raise InputError(
                    f"policy {self.name!r}: {name}: {self.scheduler!r} does not read this setting; leave it "
                    f"out, got {got}"
                )

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self.settings, "name": self.name}  # without kernels

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Policy) and self.settings == other.settings

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Policy({self.name!r}, {self.toml.strip()!r})"


def presets() -> dict[str, Preset]:
    """Return the presets by name."""
    return dict(PRESETS)


def _preset(name: str) -> Preset:
    found = PRESETS.get(name)
    if found is None:
        raise UnknownPolicyError(unknown(name))
    return found


def unknown(name: str) -> str:
    """Return the error text for a name that is not a preset."""
    known = ", ".join(PRESETS)
    near = difflib.get_close_matches(name, PRESETS, 1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    return (
        f"unknown policy {name!r}; {meant}expected one of {known}; or a TOML file (`rlsched policies show "
        "NAME` prints one), the folder of a trained policy, sb3:PATH or FILE.py[:NAME]"
    )


def _find_files(table: dict[str, Any], directory: Path) -> None:
    """Resolve relative paths in a policy file's settings against `directory`, the file's directory."""
    dials, checkpoint, rule = (table.get(name) for name in ("dials", "checkpoint", "rule"))
    if isinstance(dials, str) and dials not in NO_PATHS and not is_inline(dials):
        table["dials"] = str(directory / dials)
    names_file = isinstance(checkpoint, str) and checkpoint not in NO_PATHS and not is_inline(checkpoint)
    if names_file and (directory / str(checkpoint)).exists():
        table["checkpoint"] = str(directory / str(checkpoint))
    if isinstance(rule, str) and is_own(rule) and (directory / file_of(rule)).is_file():
        table["rule"] = rule_in_copy(rule, directory / file_of(rule))


def plain_rule(settings: Settings) -> Policy:
    """Return a fallback policy: a rule that starts jobs that fit, in the queue order of these settings."""
    made = Policy(order=settings.order, predictions=settings.predictions, slack=settings.slack)
    return made.named(f"{settings.order or 'submit'}-backfill")


# ---- settings -------------------------------------------------------------------------------------


def _settled(before: Mapping[str, Any], changes: Mapping[str, Any], where: str) -> Settings:
    """Return the settings `before` with `changes`. A table keeps the entries that `changes` does not list."""
    table = dict(before)
    for name, value in changes.items():
        if name == "order" and value == "submit":
            table.pop(name, None)  # the default
        elif isinstance(value, Mapping) and isinstance(table.get(name), Mapping):
            table[name] = {**table[name], **value}
        elif value is None or value is False:
            table.pop(name, None)
        else:
            table[name] = value
    settings = convert_settings(table, Settings, where, also=("base",))
    check(settings, where)
    if settings.order is not None:
        from rlsched.decide.order.keys import Order

        try:
            Order.parse(settings.order)
        except InputError as error:
            raise InputError(f"{where}: order: {error}") from None
    return settings


def _put(table: dict[str, Any], path: str, value: Any, where: str) -> None:
    """Set the entry of nested tables at `path`, such as `share.min_speed`."""
    *parts, last = path.split(".")
    for name in parts:
        inner = table.setdefault(name, {})
        if not isinstance(inner, dict):
            raise InputError(f"{where}: {name} is not a table of settings")
        table = inner
    before = table.get(last)
    table[last] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value


def _value(text: str) -> Any:
    """Parse a value of a command line: as TOML if possible, else as text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
