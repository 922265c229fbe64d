"""`rlsched policies show`: a policy in sentences, and every setting with what it does, as TOML."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from rlsched.settings import as_table, as_toml

if TYPE_CHECKING:
    from rlsched.decide.policies.policy import Policy

_ENTRY: Final = re.compile(r"^    (\w+): (.*(?:\n        .*)*)", re.M)
_FIRST: Final = re.compile(r".*?[.](?= [A-Z`]|$)")
_READ_BY: Final = {
    "checkpoint": ("ppo", "sb3"),
    "search": ("ppo",),
    "samples": ("rollout", "clairvoyant"),
}
"""Settings that only some rules read."""
_GIVES_WAY: Final = {
    "gittins": "jobs of a higher Gittins index give way to those of a lower one",
    "service": "jobs that have had more service give way to those that have had less",
    "priority": "jobs of a lower priority give way to those of a higher one",
    "quota": "jobs give way by levels of attained service, and then by the order of the queue",
}


def meanings(kind: type[msgspec.Struct]) -> dict[str, str]:
    """What each setting of a table does, from its entry under `Attributes`.

    The first sentence of it, or the whole of an entry that goes through the values.
    """
    text = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2]
    found = {name: " ".join(rest.split()) for name, rest in _ENTRY.findall(text)}
    return {
        name: rest if rest.startswith("`") or not (first := _FIRST.match(rest)) else first[0]
        for name, rest in found.items()
    }


def sentences(policy: Policy) -> Iterator[str]:
    """What a policy does, a sentence each: its queue, jobs that do not fit, running jobs, GPUs and clocks."""
    settings = policy.settings
    if settings.rule:
        yield f"What decides is {settings.rule}; the settings below are those that it reads."
        return
    yield f"The queue goes by {policy.rule.order.in_words}, the least first."
    if settings.blocks:
        yield "The first job that does not fit holds up all behind it."
    elif settings.reserve_after is not None:
        when = f"once it has waited {settings.reserve_after.text}" if settings.reserve_after else "at once"
        yield (
            f"A job that does not fit has a reservation {when}: jobs behind it start only where that is "
            "predicted not to delay the reserved start."
        )
    elif settings.leave_free is not None:
        free = settings.leave_free
        yield (
            f"Jobs that do not fit are skipped; jobs predicted to run longer than {free.longer_than.text} "
            f"start only where {free.share:.0%} of the GPUs stay free."
        )
    else:
        yield "Jobs that do not fit are skipped."
    if settings.preempt is not None:
        only = "Among jobs that declare themselves preemptible, " if settings.preempt.declared else ""
        text = only + _GIVES_WAY[settings.preempt.by]
        yield f"{text[0].upper()}{text[1:]}."
    if settings.share is not None:
        yield f"Up to {settings.share.max_jobs} jobs share a GPU, as models of speed say."
    if settings.clock is not None:
        yield f"SM clocks are set by the rule `{settings.clock.rule}`, as models of speed and power say."
    if settings.predictions == "oracle":
        yield "It is fed the true run times, which no broker knows."


def shown(policy: Policy) -> str:
    """The policy as a TOML file in which every setting has a line, also those at their defaults.

    Lines that would change nothing are comments, so that the file is the same policy.
    """
    settings, said = policy.settings, as_table(policy.settings)
    lines, tables, off = list[str](), list[str](), list[str]()
    words = meanings(type(settings))
    for field in msgspec.structs.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, msgspec.Struct):
            tables += ["", *_table(field.name, value, words.get(field.name, ""))]
        elif field.name in said:
            lines.append(_line({field.name: said[field.name]}, words.get(field.name, "")))
        elif not _concerns(field.name, settings.rule):
            continue
        elif value is None and any(_is_table(one) for one in get_args(field.type)):
            off.append(f"# {field.name}: off. {words.get(field.name, '')}".rstrip())
        else:
            off.append(f"# {_line({field.name: _resolved(policy, field.name)}, words.get(field.name, ''))}")
    return (
        "\n".join([*lines, "", "# As they are where nothing else is said:", *off, *tables]).strip("\n") + "\n"
    )


def _table(name: str, part: msgspec.Struct, meaning: str) -> Iterator[str]:
    """A table of settings: those that differ from their defaults, then the others as comments."""
    said, words = as_table(part), meanings(type(part))
    yield f"[{name}]" + (f"  # {meaning}" if meaning else "")
    for field in msgspec.structs.fields(part):
        if field.name in said:
            yield _line({field.name: said[field.name]}, words.get(field.name, ""))
        else:
            value = getattr(part, field.name)
            yield f"# {_line({field.name: getattr(value, 'text', value)}, words.get(field.name, ''))}"


def _line(entry: dict[str, Any], meaning: str) -> str:
    """One setting, with what it does behind it."""
    ((name, value),) = entry.items()
    text = f"{name} = none" if value is None else as_toml(entry).rstrip("\n")
    return f"{text}  # {meaning}" if meaning else text


def _resolved(policy: Policy, name: str) -> Any:
    """A setting that is left out, as it is then."""
    if name == "order" and not policy.settings.rule:
        return policy.rule.order.name
    value = getattr(policy.settings, name)
    return list(value) if isinstance(value, tuple) else value


def _concerns(name: str, rule: str) -> bool:
    """Whether a setting that is left out may matter under such a rule."""
    if name == "own":
        return ".py" in rule
    return bool(rule) if name == "rule" else rule in _READ_BY.get(name, (rule,))


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
