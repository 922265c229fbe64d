"""The compared policies: the rules with the grids of their parameters, and the chosen values."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from rlsched.decide.dials.strategy import Strategy
from rlsched.decide.own import DEFAULT, content_of, is_own, rule_in_copy
from rlsched.decide.policies.policy import Policy, presets
from rlsched.decide.registry import load_scheduler
from rlsched.errors import InputError
from studies.policy.abilities import REVISED, able
from studies.policy.cases import Foresight

TUNED_FILE: Final = Path(__file__).with_name("tuned.json")

REFERENCES: Final = ("qssf", "qssf-backfill")
"""References. In each case, «best QSSF» is the reference with the lower mean queueing delay."""
TUNING_REFERENCE: Final = "qssf-backfill"
Measure = Literal["queue", "jct"]
Role = Literal["policy", "reference", "rule", "oracle"]


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """The tried values of one rule.

    Attributes:
        values: Policies, each with its own name.
        measure: Mean to minimise: queueing for rules that start a job once and unshared, JCT for
            rules that preempt or share, whose first start is no measure.
        models: Whether it runs under models, with the default draw of workloads.
        preemptible_frac: Share of the jobs that may be preempted.
        predictions: Quality of the predicted durations.
    """

    values: tuple[Policy, ...]
    measure: Measure = "queue"
    models: bool = False
    preemptible_frac: float = 1.0
    predictions: Foresight = "causal"

    @property
    def names(self) -> list[str]:
        """Names of the values."""
        return [value.name for value in self.values]

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """All settings of each value, as in a TOML file, by name of the value."""
        return {value.name: settings_of(value) for value in self.values}


def settings_of(policy: Policy) -> dict[str, Any]:
    """All settings of a policy, as in a TOML file."""
    return tomllib.loads(policy.toml)


def _easy(order: str, wait: str) -> Policy:
    """EASY backfill in an order, with a reservation after a wait."""
    return Policy("easy", name=f"easy {order} {wait}", order=order, reserve_after=wait)


def _gittins(spread: float, trust: float, power: float, margin: float) -> Policy:
    """Return the Gittins index with these figures."""
    return Policy(
        "gittins",
        name=f"gittins {spread:g} {trust:g} {power:g} {margin:g}",
        preempt={"spread": spread, "trust": trust, "gpus_power": power, "margin": margin},
    )


def _clearing(gpu_s: float) -> Policy:
    """Return Tiresias's two queues with another preemption: GPUs are freed node by node, without a quota."""
    name = f"tiresias-clear {gpu_s}"
    return Policy(name=name, preempt={"by": "service", "threshold_gpu_s": float(gpu_s)})


_THRESHOLDS: Final = (900, 3250, 9000, 18000, 36000, 72000, 144000, 288000, 576000, 1152000)
GRIDS: Final[dict[str, Grid]] = {
    "reserve": Grid(
        values=tuple(
            Policy(
                "reserve", name=f"reserve {time} {share:g}", leave_free={"longer_than": time, "share": share}
            )
            for time in ("30m", "1h", "4h", "12h", "1d", "2d")
            for share in (0.05, 0.1, 0.25, 0.4)
        )
    ),
    "tiresias": Grid(
        values=tuple(
            Policy("tiresias", name=f"tiresias {gpu_s}", preempt={"threshold_gpu_s": float(gpu_s)})
            for gpu_s in _THRESHOLDS
        ),
        measure="jct",
    ),
    "easy": Grid(
        values=(
            Policy("easy"),
            *(_easy(order, wait) for wait in ("0s", "6h") for order in ("predicted", "area", "area^0.7")),
        ),
    ),
    "easy-revised": Grid(
        values=(
            able(Policy("qssf-backfill"), REVISED),
            *(able(_easy(order, "0s"), REVISED) for order in ("predicted", "area", "area^0.7")),
            *(able(_easy(order, "1h"), REVISED) for order in ("predicted", "area^0.7")),
            able(_easy("area^0.7", "6h"), REVISED),
        ),
    ),
    "pack": Grid(
        values=tuple(
            Policy("pack", name=f"pack {speed:g}", share={"min_speed": speed})
            for speed in (0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
        ),
        measure="jct",
        models=True,
    ),
    "lucid": Grid(
        values=tuple(
            Policy("lucid", name=f"lucid {run_s}", profile={"run": f"{run_s}s"}) for run_s in (80, 200)
        ),
        measure="jct",
        models=True,
    ),
}
"""`easy` is tuned by the order of its queue, and by the wait before a job has a reservation. Lucid's grid
has only the two published times of its profiler, because no profiling at all would be best."""

_GITTINS: Final = (
    *(_gittins(spread, 0, 0.7, 0.5) for spread in (2.5, 2, 3, 1.5)),
    *(_gittins(spread, 0, power, 0.5) for spread, power in ((2.5, 0.5), (2.5, 1), (2, 1), (1.5, 1))),
    *(_gittins(2.5, 0, 0.7, 0.25), _gittins(2.5, 0, 0.7, 1), _gittins(2.5, 0.5, 0.7, 0.5)),
)
"""Values around a spread of 2.5: one figure changes at a time; small spreads also change with the power."""
_GITTINS_REVISED: Final = (
    *(able(_gittins(spread, 0, 0.7, 0.5), REVISED) for spread in (1, 1.5, 2, 2.5)),
    *(able(_gittins(1.5, 0.5, 0.7, 0.5), REVISED), able(_gittins(1.5, 0, 0.7, 1), REVISED)),
)
"""Values for revised predictions. Spreads are smaller, because revision explains a part of the errors; one
value changes the trust, and one the margin."""
_CLEARING: Final = tuple(_clearing(gpu_s) for gpu_s in (18000, 72000, 144000, 288000))
"""Fewer thresholds than for `tiresias`, because this rule is an ablation and not an opponent."""


def _preemptive(*rules: str, preemptible_frac: float = 1.0) -> dict[str, Grid]:
    """Grids of rules that preempt, at a share of preemptible jobs."""
    values = {
        "tiresias": GRIDS["tiresias"].values,
        "tiresias-clear": _CLEARING,
        "gittins": _GITTINS,
        "gittins-revised": _GITTINS_REVISED,
    }
    return {
        rule: Grid(values=values[rule], measure="jct", preemptible_frac=preemptible_frac) for rule in rules
    }


BASE: Final = "base"
MORE_GRIDS: Final[dict[str, dict[str, Grid]]] = {
    "preemptible1": _preemptive("gittins", "gittins-revised", "tiresias-clear"),
    "preemptible0.5": _preemptive(
        "tiresias", "gittins", "gittins-revised", "tiresias-clear", preemptible_frac=0.5
    ),
    "good": {
        rule: msgspec.structs.replace(GRIDS[rule], predictions="good")
        for rule in ("reserve", "easy", "easy-revised")
    },
}
"""By setting, then by rule: rules tuned separately, because permissions or information differ. `GRIDS` belong
to `BASE`."""


def all_grids() -> Iterator[tuple[str, str, Grid]]:
    """(setting, rule, grid) of every grid."""
    for setting, grids in {BASE: GRIDS, **MORE_GRIDS}.items():
        for rule, grid in grids.items():
            yield setting, rule, grid


FIXED: Final = ("fifo-backfill",)
TRUE_SJF: Final = Policy("sjf-backfill")
TRUE_GITTINS: Final = Policy(
    "gittins", name="true gittins", predictions="oracle", preempt={"spread": 0.1, "trust": 0.0}
)
"""The index with known run times: with preemption a lower bound than `srtf`, which orders by the remaining
time of whole gangs."""
ORACLES: Final = (TRUE_SJF, TRUE_GITTINS)
"""Rules with true durations: bounds, not opponents."""


def default_of(rule: str) -> Policy:
    """Return a rule at its default values; for `tiresias-clear`, the default is the threshold of Tiresias."""
    defaults = {
        "tiresias-clear": _clearing(18000),
        "easy-revised": able(Policy("easy"), REVISED),
        "gittins-revised": able(Policy("gittins"), REVISED),
    }
    return defaults[rule] if rule in defaults else Policy(rule)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the comparison.

    Attributes:
        policy: The policy.
        label: Name of its row over all cases: the rule, if the value depends on the trace.
        role: Under test, a reference, a rule, or a bound with true durations.
        models: Whether it runs under models.
    """

    policy: Policy
    label: str
    role: Role
    models: bool = False


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """Tuning result of one rule.

    Attributes:
        grid: Settings of every tried value, as in a TOML file, by name of the value.
        chosen: Name of the value for all traces, with the least score.
        score: Score of that value: geometric mean over all cases of its mean / the mean of `qssf-backfill`.
        chosen_by_trace: Name of the value for each trace by itself.
    """

    grid: dict[str, dict[str, Any]]
    chosen: str
    score: float
    chosen_by_trace: dict[str, str]

    def policy(self, trace: str = "") -> Policy:
        """Return the policy with the value for all traces, or with the value for one trace."""
        name = self.chosen_by_trace.get(trace, self.chosen)
        return Policy(name=name, **self.grid[name])


class TunedFile(msgspec.Struct, frozen=True, kw_only=True):
    """`tuned.json`: only the choices. Tried values are in the folder of the tuning.

    Attributes:
        traces: Traces used for tuning.
        test_split_read: When the test split was first read with these values; empty: not yet.
        rules: Results in the base setting, by rule.
        settings: Results by setting of `MORE_GRIDS`, then by rule.
    """

    traces: list[str]
    test_split_read: str = ""
    rules: dict[str, Tuned] = {}
    settings: dict[str, dict[str, Tuned]] = {}


def read_tuned(path: Path = TUNED_FILE) -> TunedFile:
    """The chosen values.

    Raises:
        InputError: There is no such file, or it is damaged.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=TunedFile)
    except FileNotFoundError:
        raise InputError(f"{path}: no tuned values; run `python -m studies.policy.tune` first") from None
    except msgspec.DecodeError as error:
        raise InputError(f"{path}: expected the file of studies.policy.tune, got {error}") from None


def write_tuned(path: Path, found: TunedFile) -> None:
    """Write the chosen values, a value of a grid a line."""

    def rule(name: str, one: Tuned, indent: str) -> str:
        values = (f"{indent}  {_json(value)}: {_json(settings)}" for value, settings in one.grid.items())
        return (
            f'{indent}{_json(name)}: {{"chosen": {_json(one.chosen)}, "score": {_json(one.score)},\n'
            f'{indent} "chosen_by_trace": {_json(one.chosen_by_trace)},\n'
            f'{indent} "grid": {{\n' + ",\n".join(values) + f"\n{indent} }}}}"
        )

    def rules(some: dict[str, Tuned], indent: str) -> str:
        each = (rule(name, one, indent) for name, one in some.items())
        return "{\n" + ",\n".join(each) + f"\n{indent[1:]}}}" if some else "{}"

    settings = ",\n".join(f"  {_json(name)}: {rules(some, '   ')}" for name, some in found.settings.items())
    text = (
        f'{{\n "traces": {_json(found.traces)},\n "test_split_read": {_json(found.test_split_read)},\n'
        f' "rules": {rules(found.rules, "  ")},\n'
        f' "settings": {{{chr(10) + settings + chr(10) + " " if settings else ""}}}\n}}\n'
    )
    path.write_text(text, encoding="utf-8")


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


def digest(path: Path) -> str:
    """First twelve digits of a file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


_NAMES: Final = {Policy(name): name for name in presets()}


def policy_id(policy: Policy) -> str:
    """Identity of a policy, independent of its name: a preset's name, or a digest of its settings.

    It ends with a digest of the content of each file that the policy names, in place of the file's path.
    """
    settings, scheduler, files = policy.settings, load_scheduler(policy), list[str]()
    if settings.dials:
        files.append(Strategy.of_setting(settings.dials).digest)
        policy = policy.with_settings(dials=DEFAULT)
    if settings.checkpoint:
        files.append(scheduler.policy_id)
        policy = policy.with_settings(checkpoint=DEFAULT)
    if is_own(settings.rule):
        files.append(content_of(settings.rule))
        policy = policy.with_settings(rule=rule_in_copy(settings.rule, Path("rule.py")))
    return "@".join((_NAMES.get(policy) or policy.digest, *files))


def untuned(tuned: TunedFile | None) -> list[str]:
    """Rules without a value from their present grid."""
    return [rule for rule in GRIDS if _complete(tuned, rule) is None]


def _complete(tuned: TunedFile | None, rule: str) -> Tuned | None:
    """Return the tuning result of a rule in the base setting; None: not tuned from its present grid."""
    found = tuned.rules.get(rule) if tuned is not None else None
    return found if found is not None and found.grid == GRIDS[rule].settings else None


def entries(tuned: TunedFile | None, trace: str, policies: Sequence[Policy]) -> list[Entry]:
    """All rows of one trace: references, policies under test, tuned rules, and bounds.

    A tuned rule has two rows: for example, `reserve` has the value for all traces, and `reserve (by trace)`
    has the best value for this trace. A rule that is not tuned has its default value.
    """
    found = [_preset(name, "reference") for name in REFERENCES]
    found += [Entry(policy=one, label=one.name, role="policy") for one in policies]
    found += [_preset(name, "rule") for name in FIXED]
    shared = [_preset(name, "reference", models=True) for name in REFERENCES]
    for rule, grid in GRIDS.items():
        one = _complete(tuned, rule)
        values = {rule: default_of(rule)}
        if one is not None:
            values = {rule: one.policy(), f"{rule} (by trace)": one.policy(trace)}
        (shared if grid.models else found).extend(
            Entry(policy=value, label=label, role="rule", models=grid.models)
            for label, value in values.items()
        )
    found += [Entry(policy=one, label=one.name, role="oracle") for one in ORACLES]
    return found + shared


def _preset(name: str, role: Role, *, models: bool = False) -> Entry:
    return Entry(policy=Policy(name), label=name, role=role, models=models)
