"""Who is compared: the rules with the grids of their parameters, and which values were chosen."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from rlsched.decide.scheduler import load_scheduler
from rlsched.errors import InputError
from studies.policy.cases import Foresight

TUNED_FILE: Final = Path(__file__).with_name("tuned.json")

REFERENCES: Final = ("qssf", "qssf-backfill")
"""«Best QSSF» is the one of them that waits less, case by case."""
TUNING_REFERENCE: Final = "qssf-backfill"
SHORT_TRACES: Final = ("philly/6c71a0",)
"""Traces short enough for rules that look ahead: 882 jobs in the validation part, 1,701 with the warm-up; the
others have 4,765 to 17,167."""
Measure = Literal["queue", "jct"]


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """The values of one rule that are tried.

    Attributes:
        values: Names of policies.
        measure: Mean of what is to be small: queueing for rules that start a job once and alone, JCT for
            those that preempt or share, whose first start says little.
        models: Whether it runs under models, with the default draw of workloads.
        slow: Whether it looks ahead, and takes hours on whole windows: it is tuned on stretches of them
            (`tune_rollout`), and compared on `SHORT_TRACES` alone unless it is asked for.
        preemptible_frac: Share of the jobs that may be preempted.
        predictions: How well durations are predicted.
    """

    values: tuple[str, ...]
    measure: Measure = "queue"
    models: bool = False
    slow: bool = False
    preemptible_frac: float = 1.0
    predictions: Foresight = "causal"


_THRESHOLDS: Final = (900, 3250, 9000, 18000, 36000, 72000, 144000, 288000, 576000, 1152000)
GRIDS: Final[dict[str, Grid]] = {
    "sgf-age": Grid(
        values=tuple(f"sgf-age:{age}" for age in ("3h", "6h", "12h", "1d", "2d", "4d", "8d", "16d"))
    ),
    "reserve": Grid(
        values=tuple(
            f"reserve:{time},{share}"
            for time in ("30m", "1h", "4h", "12h", "1d", "2d")
            for share in ("0.05", "0.1", "0.25", "0.4")
        )
    ),
    "tiresias": Grid(
        values=tuple(f"tiresias:{gpu_s}" for gpu_s in _THRESHOLDS),
        measure="jct",
    ),
    "easy": Grid(
        values=(
            *("easy", "easy:sjf,0s", "easy:qssf,0s", "easy:size,0s"),
            *("easy:sjf,6h", "easy:qssf,6h", "easy:size,6h"),
        ),
    ),
    "easy+revise": Grid(
        values=(
            "qssf-backfill+revise",
            *("easy:sjf,0s+revise", "easy:qssf,0s+revise", "easy:size,0s+revise"),
            *("easy:sjf,1h+revise", "easy:size,1h+revise", "easy:size,6h+revise"),
        ),
    ),
    "pack": Grid(
        values=tuple(f"pack:{speed}" for speed in ("0.4", "0.5", "0.6", "0.7", "0.8", "0.85", "0.9", "0.95")),
        measure="jct",
        models=True,
    ),
    "lucid": Grid(values=("lucid:80", "lucid:200"), measure="jct", models=True),
    "rollout": Grid(values=("rollout:4", "rollout:8", "rollout:16"), slow=True),
}
"""`easy` is tuned by the order of its queue, and by the wait before a job has a reservation. Lucid's is what
its profiler costs, not what it decides: the two published times alone, since none at all would be best."""

_GITTINS: Final = (
    *("gittins:2.5,0,0.7,0.5", "gittins:2,0,0.7,0.5", "gittins:3,0,0.7,0.5", "gittins:1.5,0,0.7,0.5"),
    *("gittins:2.5,0,0.5,0.5", "gittins:2.5,0,1,0.5", "gittins:2,0,1,0.5", "gittins:1.5,0,1,0.5"),
    *("gittins:2.5,0,0.7,0.25", "gittins:2.5,0,0.7,1", "gittins:2.5,0.5,0.7,0.5"),
)
"""About a spread of 2.5 one figure at a time; spread and power together where small ones are."""
_GITTINS_REVISED: Final = (
    *("gittins:1,0,0.7,0.5+revise", "gittins:1.5,0,0.7,0.5+revise", "gittins:2,0,0.7,0.5+revise"),
    *("gittins:2.5,0,0.7,0.5+revise", "gittins:1.5,0.5,0.7,0.5+revise", "gittins:1.5,0,0.7,1+revise"),
)
"""With revised predictions: other spreads, since they explain a part of the errors; trust and margin once."""
_CLEARING: Final = tuple(f"tiresias:{gpu_s},clear" for gpu_s in (18000, 72000, 144000, 288000))
"""Fewer thresholds: an ablation, and no opponent."""


def _preemptive(*rules: str, preemptible_frac: float = 1.0) -> dict[str, Grid]:
    """Grids of rules that preempt, at a share of preemptible jobs."""
    values = {
        "tiresias": GRIDS["tiresias"].values,
        "tiresias-clear": _CLEARING,
        "gittins": _GITTINS,
        "gittins+revise": _GITTINS_REVISED,
    }
    return {
        rule: Grid(values=values[rule], measure="jct", preemptible_frac=preemptible_frac) for rule in rules
    }


BASE: Final = "base"
MORE_GRIDS: Final[dict[str, dict[str, Grid]]] = {
    "preemptible1": _preemptive("gittins", "gittins+revise", "tiresias-clear"),
    "preemptible0.5": _preemptive(
        "tiresias", "gittins", "gittins+revise", "tiresias-clear", preemptible_frac=0.5
    ),
    "good": {
        rule: msgspec.structs.replace(GRIDS[rule], predictions="good")
        for rule in ("reserve", "sgf-age", "easy", "easy+revise")
    },
}
"""By setting, then by rule: what is tuned apart, because more is allowed there or known. `GRIDS` are those of
`BASE`."""


def all_grids() -> Iterator[tuple[str, str, Grid]]:
    """(setting, rule, grid) of every grid there is."""
    for setting, grids in {BASE: GRIDS, **MORE_GRIDS}.items():
        for rule, grid in grids.items():
            yield setting, rule, grid


FIXED: Final = ("fifo-backfill",)
ORACLES: Final = ("sjf-backfill", "srtf")
"""Fed the true durations: bounds, not opponents."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the comparison.

    Attributes:
        policy: Name of the policy.
        label: What its row is called over all cases: the rule, where the value depends on the trace.
        role: Whether it is under test, a reference, a rule, or knows the true durations.
        models: Whether it runs under models.
    """

    policy: str
    label: str
    role: Literal["policy", "reference", "rule", "oracle"]
    models: bool = False


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """What tuning came to for one rule.

    Attributes:
        grid: Every value that was tried.
        chosen: The value for all traces: that of the least score.
        score: Its geometric mean over all cases of its mean / that of `qssf-backfill`.
        chosen_by_trace: The value for each trace by itself.
    """

    grid: list[str]
    chosen: str
    score: float
    chosen_by_trace: dict[str, str]


class TunedFile(msgspec.Struct, frozen=True, kw_only=True):
    """`tuned.json`: what was chosen, and no more. What was tried stands in the folder of the tuning.

    Attributes:
        traces: Traces that were tuned on.
        test_split_read: When the test split was first read with these values; empty: not yet.
        rules: By rule.
        settings: By setting of `MORE_GRIDS`, by rule.
    """

    traces: list[str]
    test_split_read: str = ""
    rules: dict[str, Tuned] = {}
    settings: dict[str, dict[str, Tuned]] = {}


def read_tuned(path: Path = TUNED_FILE) -> TunedFile:
    """The chosen values.

    Raises:
        InputError: there is no such file, or it is damaged.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=TunedFile)
    except FileNotFoundError:
        raise InputError(f"{path}: no tuned values; run `python -m studies.policy.tune` first") from None
    except msgspec.DecodeError as error:
        raise InputError(f"{path}: expected the file of studies.policy.tune, got {error}") from None


def write_tuned(path: Path, found: TunedFile) -> None:
    """Write the chosen values, a rule a line."""

    def lines(rules: dict[str, Tuned], indent: str) -> str:
        each = (f"{indent}{_json(rule)}: {_json(one)}" for rule, one in rules.items())
        return "{\n" + ",\n".join(each) + "\n" + indent[1:] + "}" if rules else "{}"

    settings = ",\n".join(f"  {_json(name)}: {lines(rules, '   ')}" for name, rules in found.settings.items())
    text = (
        f'{{\n "traces": {_json(found.traces)},\n "test_split_read": {_json(found.test_split_read)},\n'
        f' "rules": {lines(found.rules, "  ")},\n'
        f' "settings": {{{chr(10) + settings + chr(10) + " " if settings else ""}}}\n}}\n'
    )
    path.write_text(text, encoding="utf-8")


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


def digest(path: Path) -> str:
    """First twelve digits of a file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def policy_id(policy: str) -> str:
    """What a policy is: for a network, its name and a digest of its content."""
    return str(getattr(load_scheduler(policy), "policy_id", policy))


def untuned(tuned: TunedFile | None) -> list[str]:
    """Rules without a value that was chosen from their grid as it is now; rules that look ahead aside."""
    known = {} if tuned is None else tuned.rules
    return [
        rule
        for rule, grid in GRIDS.items()
        if not grid.slow and (rule not in known or known[rule].grid != list(grid.values))
    ]


def entries(
    tuned: TunedFile | None, trace: str, policies: list[str], *, rollout: bool = False
) -> list[Entry]:
    """All rows of one trace: references, those under test, rules as tuned, and bounds.

    A tuned rule is there twice: `reserve` has the one value for all traces, `reserve (by trace)` the best of
    this. A rule that is not tuned has its default value.
    """
    found = [Entry(policy=name, label=name, role="reference") for name in REFERENCES]
    found += [Entry(policy=name, label=name, role="policy") for name in policies]
    found += [Entry(policy=name, label=name, role="rule") for name in FIXED]
    shared = [Entry(policy=name, label=name, role="reference", models=True) for name in REFERENCES]
    without = untuned(tuned)
    for rule, grid in GRIDS.items():
        if grid.slow and not rollout and trace not in SHORT_TRACES:
            continue
        one = tuned.rules.get(rule) if tuned is not None and rule not in without else None
        one = one if one is not None and one.grid == list(grid.values) else None
        values = {rule: rule}
        if one is not None:
            values = {rule: one.chosen, f"{rule} (by trace)": one.chosen_by_trace.get(trace, one.chosen)}
        (shared if grid.models else found).extend(
            Entry(policy=value, label=label, role="rule", models=grid.models)
            for label, value in values.items()
        )
    found += [Entry(policy=name, label=name, role="oracle") for name in ORACLES]
    return found + shared
