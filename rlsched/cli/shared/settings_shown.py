"""The output of `rlsched policies show`: sentences that describe a policy, and its settings as TOML."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from rlsched.settings import as_table, as_toml

if TYPE_CHECKING:
    from rlsched.decide.policies.policy import Policy
    from rlsched.decide.settings import PriceSettings

_ENTRY: Final = re.compile(r"^    (\w+): (.*(?:\n        .*)*)", re.M)
_FIRST: Final = re.compile(r".*?[.](?= [A-Z`]|$)")
_READ_BY: Final = {
    "checkpoint": ("sb3",),
}
"""Setting that only some rules use -> names of these rules."""
_GIVES_WAY: Final = {
    "gittins": "jobs with a higher Gittins index give way to jobs with a lower one",
    "service": "jobs with more service so far give way to jobs with less",
    "priority": "jobs of lower priority give way to jobs of higher priority",
    "quota": "jobs give way by levels of attained service, and then by the order of the queue",
}


def meanings(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return a dict: field of a settings class -> its meaning, from `Attributes` in its docstring.

    A meaning is the first sentence of the entry, or the whole entry if it describes the values one by one.
    """
    text = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2]
    found = {name: " ".join(rest.split()) for name, rest in _ENTRY.findall(text)}
    return {
        name: rest if rest.startswith("`") or not (first := _FIRST.match(rest)) else first[0]
        for name, rest in found.items()
    }


def sentences(policy: Policy) -> Iterator[str]:
    """Yield sentences that describe a policy: queue, jobs that do not fit, running jobs, GPUs, clocks."""
    settings = policy.settings
    if settings.rule:
        yield f"The deciding rule is {settings.rule}; it reads the settings below."
        return
    yield f"The queue is sorted by {policy.rule.order.in_words}, lowest first."
    if settings.blocks:
        yield "The first job that does not fit blocks all jobs behind it."
    elif settings.reserve_after is not None:
        when = f"once it has waited {settings.reserve_after.text}" if settings.reserve_after else "at once"
        yield (
            f"A job that does not fit gets a reservation {when}: jobs behind it start only if they are "
            "predicted not to delay the reserved start."
        )
    elif settings.leave_free is not None:
        free = settings.leave_free
        yield (
            f"Jobs that do not fit are skipped; jobs predicted to run longer than {free.longer_than.text} "
            f"start only if {free.share:.0%} of the GPUs stay free."
        )
    else:
        yield "Jobs that do not fit are skipped."
    if settings.preempt is not None:
        only = "Among jobs that declare themselves preemptible, " if settings.preempt.declared else ""
        text = only + _GIVES_WAY[settings.preempt.by]
        yield f"{text[0].upper()}{text[1:]}."
    if settings.slack is not None:
        slack = settings.slack
        yield (
            f"A job with slack counts {slack.early_weight:g} times a job without slack until it has used "
            f"{slack.early_until:.0%} of its slack, and {slack.late_weight:g} times once it has used "
            f"{slack.late_from:.0%}."
        )
    if settings.price is not None:
        yield from _price_sentences(settings.price)
    if settings.share is not None:
        yield f"Up to {settings.share.max_jobs} jobs share a GPU, if the speed models favour it."
    if settings.clock is not None:
        yield f"SM clocks are set by the rule `{settings.clock.rule}`, with models of speed and power."
    if settings.predictions == "oracle":
        yield "The policy gets the true run times, which no broker knows."


def _price_sentences(price: PriceSettings) -> Iterator[str]:
    """Yield sentences on the jobs that wait for cheaper electricity."""
    pause = " Preemptible ones pause, too." if price.pause > 0.0 or price.percentile > 0.0 else ""
    if price.percentile > 0.0:
        yield (
            f"Jobs with slack wait while electricity costs more than {price.percentile:.0%} of the prices of "
            f"the past 7 days.{pause}"
        )
    elif price.defer > 0.0 or price.pause > 0.0:
        yield f"While electricity costs more than its mean, jobs with slack wait.{pause}"
    if price.window:
        yield "A job with slack starts in the hours in which its predicted run costs least."
    if price.spare > 0.0:
        yield (
            f"The rest of their slack is at least {price.spare:g} x the time in which the GPUs complete "
            "all predicted work."
        )
    if price.longer_than > 0.0:
        yield f"Jobs predicted to run for at most {price.longer_than.text} start at any price."


def shown(policy: Policy) -> str:
    """Return the text of a TOML file that defines the policy.

    The file has a line for every setting that has an effect. Settings with default values are commented out.
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
    return "\n".join([*lines, "", "# Defaults:", *off, *tables]).strip("\n") + "\n"


def _table(name: str, part: msgspec.Struct, meaning: str) -> Iterator[str]:
    """Yield the lines of one TOML table. Settings with default values are commented out."""
    said, words = as_table(part), meanings(type(part))
    yield f"[{name}]" + (f"  # {meaning}" if meaning else "")
    for field in msgspec.structs.fields(part):
        if field.name in said:
            yield _line({field.name: said[field.name]}, words.get(field.name, ""))
        else:
            value = getattr(part, field.name)
            yield f"# {_line({field.name: getattr(value, 'text', value)}, words.get(field.name, ''))}"


def _line(entry: dict[str, Any], meaning: str) -> str:
    """Return the TOML line of one setting; a comment at its end gives the meaning."""
    ((name, value),) = entry.items()
    text = f"{name} = none" if value is None else as_toml(entry).rstrip("\n")
    return f"{text}  # {meaning}" if meaning else text


def _resolved(policy: Policy, name: str) -> Any:
    """Return the value that applies to a setting that the policy does not set."""
    if name == "order" and not policy.settings.rule:
        return policy.rule.order.name
    value = getattr(policy.settings, name)
    return list(value) if isinstance(value, tuple) else value


def _concerns(name: str, rule: str) -> bool:
    """Return whether a setting that the policy does not set has an effect under a rule."""
    if name == "own":
        return ".py" in rule
    return bool(rule) if name == "rule" else rule in _READ_BY.get(name, (rule,))


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
