"""The rows of the bar: permissions and information in each, and the compared policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from rlsched.decide.policies.policy import Policy
from studies.policy.abilities import (
    CORES,
    REVISED,
    Ability,
    able,
    fixed_clock,
    lull,
    share,
    slowdown,
    weighed,
)
from studies.policy.cases import SYNTHETIC, UNSEEN, Case, Foresight, cases
from studies.policy.opponents import (
    BASE,
    GRIDS,
    MORE_GRIDS,
    ORACLES,
    REFERENCES,
    TRUE_GITTINS,
    TRUE_SJF,
    Entry,
    Grid,
    Role,
    Tuned,
    TunedFile,
    default_of,
)
from studies.policy.synthetic import SEQUENCES, for_tested

LOADS: Final = (0.7, 0.85, 0.95, 1.05)
HEADLINE_LOADS: Final = (0.85, 0.95, 1.05)
"""Loads of the twelve cases of the bar. Tables over all cases use only these loads; load 0.7 is separate."""
DIAL_LOADS: Final = (0.85,)
SIZES_LOADS: Final = (0.95,)
GATE: Final = 0.5
"""Speed that all sharing jobs must keep under `gittins`: the tuned value of `pack`."""
STRICT_GATE: Final = 0.85
"""Speed that sharing jobs must keep in the bar's target for the quality of sharing."""
OWN_SPREAD: Final = Policy("gittins", name="gittins 0.1 1", preempt={"spread": 0.1, "trust": 1.0})
"""The Gittins index with the spread of each prediction, and hardly any added spread. This policy is not
tuned. It shows the loss by one spread for all jobs on clusters with similar run times."""
WEIGHTS: Final = tuple(k / 8 for k in range(9))
"""Nine settings of the dial between JCT and energy."""


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the bar.

    Attributes:
        name: A word, for the command line.
        title: Heading.
        goal: Target of the bar.
        measure: Ranking measure: mean JCT, or mean delay (`measures`).
        models: Whether it runs under models.
        preemptible_frac: Share of the jobs that may be preempted.
        declared: Whether the jobs declare that they may be preempted, if all of them may; `ppo` preempts only
            then.
        predictions: Quality of the predicted durations.
        loads: Offered loads.
        tested: When policies under test are rows of the study: always, only if they are named, or never.
        default: Policies under test if none is named and some are always tested.
        own: Traces or sequences of only this study, on which no rule was tuned; empty: the common ones.
        part: The only part of the time that the study uses; empty: the requested split.
    """

    name: str
    title: str
    goal: str
    measure: Literal["jct", "delay"] = "delay"
    models: bool = False
    preemptible_frac: float = 1.0
    declared: bool = False
    predictions: Foresight = "causal"
    loads: tuple[float, ...] = LOADS
    tested: Literal["always", "named", "never"] = "named"
    default: tuple[Policy, ...] = (Policy("ppo"),)
    own: tuple[str, ...] = ()
    part: str = ""

    @property
    def setting(self) -> str:
        """The setting in which the study's rules are tuned."""
        if self.predictions == "good":
            return "good"
        return f"preemptible{self.preemptible_frac:g}" if self.preemptible_frac else BASE

    def traces(self, named: Sequence[str], others: Sequence[str]) -> list[str]:
        """Return the study's own traces, limited to `named` if that is not empty.

        Without traces of its own: `named`, or `others` if `named` is empty.
        """
        return [one for one in self.own or named or others if not named or one in named]

    def cases(self, traces: Sequence[str], part: str, loads: Sequence[float] | None = None) -> list[Case]:
        """Return the study's cases, trace by trace."""
        return cases(
            traces,
            [self.part or part],
            self.loads if loads is None else loads,
            preemptible_frac=self.preemptible_frac,
            declared=self.declared,
            predictions=self.predictions,
        )


STUDIES: Final = {
    study.name: study
    for study in (
        Study(
            name="preempt100",
            title="Preemption, all jobs preemptible",
            declared=True,
            goal="mean JCT 10 % below tuned `tiresias` and never above it; within 10 % of `true gittins`",
            measure="jct",
            tested="always",
        ),
        Study(
            name="preempt50",
            title="Preemption, half of the jobs preemptible",
            goal="mean JCT 10 % below tuned `tiresias` and never above it",
            measure="jct",
            preemptible_frac=0.5,
            tested="always",
        ),
        Study(
            name="sharing",
            title="Sharing without preemption",
            goal="mean delay 20 % below `lucid` and `pack` where `lucid`'s queueing is 30 % of its JCT or "
            "more, p99.9 no higher, 95 % of the jobs that share keep 85 % of their speed",
            models=True,
            preemptible_frac=0.0,
            loads=HEADLINE_LOADS,
            tested="never",
        ),
        Study(
            name="everything",
            title="Everything allowed at full clocks: sharing, cores, half of the jobs preemptible",
            goal="mean delay 40 % below best QSSF",
            models=True,
            preemptible_frac=0.5,
            loads=HEADLINE_LOADS,
            tested="never",
        ),
        Study(
            name="good",
            title="Predictions as good as published ones (a diagnostic), no preemption",
            goal="mean queueing 20 % below best QSSF; better than each rule in 10 of 12 cases",
            predictions="good",
            tested="always",
        ),
        Study(
            name="dial",
            title="The dial between JCT and GPU energy",
            goal="on or above the front of the hand rules at nine settings; 20 % less GPU energy than "
            "`qssf-backfill` at its mean JCT",
            models=True,
            preemptible_frac=0.5,
            loads=DIAL_LOADS,
            tested="never",
        ),
        Study(
            name="unseen",
            title="Clusters that nothing was tuned on, no preemption",
            goal="half of the gain on the four traces is kept, no case more than 2 % worse than best QSSF",
            preemptible_frac=0.0,
            loads=HEADLINE_LOADS,
            tested="always",
            own=UNSEEN,
        ),
        Study(
            name="unseen100",
            title="Clusters that nothing was tuned on, all jobs preemptible",
            declared=True,
            goal="half of the gain on the four traces is kept, no case more than 2 % worse than best QSSF",
            measure="jct",
            loads=HEADLINE_LOADS,
            tested="always",
            own=UNSEEN,
        ),
        Study(
            name="unseen50",
            title="Clusters that nothing was tuned on, half of the jobs preemptible",
            goal="half of the gain on the four traces is kept, no case more than 2 % worse than best QSSF",
            measure="jct",
            preemptible_frac=0.5,
            loads=HEADLINE_LOADS,
            tested="always",
            own=UNSEEN,
        ),
        Study(
            name="sizes",
            title="From 16 to 10,000 GPUs, synthetic, all jobs preemptible",
            declared=True,
            goal="half of the gain is kept at sizes 8 times larger, no case over 2 % worse than best QSSF",
            measure="jct",
            loads=SIZES_LOADS,
            tested="always",
            own=tuple(SEQUENCES),
            part=SYNTHETIC,
        ),
    )
}


_PREEMPTIVE: Final = ("tiresias", "tiresias-clear", "gittins", "gittins-revised")
_TUNED: Final[dict[str, tuple[str, ...]]] = {
    "preempt100": _PREEMPTIVE,
    "preempt50": _PREEMPTIVE,
    "sharing": ("pack", "lucid", "gittins", "easy-revised"),
    "everything": ("pack", "gittins"),
    "good": ("reserve", "easy", "easy-revised"),
    "dial": ("pack", "gittins"),
    "unseen": ("reserve", "easy", "easy-revised", "gittins"),
    "unseen100": _PREEMPTIVE,
    "unseen50": _PREEMPTIVE,
    "sizes": ("tiresias", "gittins"),
}
"""Rules whose tuned values a study uses, by study."""
_AS_IT_IS: Final[dict[str, tuple[str, ...]]] = _TUNED | {
    "sharing": ("pack", "lucid"),
    "everything": ("pack",),
    "dial": ("pack",),
}
"""Rules with rows without further abilities, by study."""
_ORACLES: Final[dict[str, tuple[Policy, ...]]] = {
    "preempt100": (TRUE_GITTINS,),
    "preempt50": (TRUE_GITTINS,),
    "sharing": (),
    "everything": (),
    "good": (TRUE_SJF,),
    "dial": (),
    "unseen": (TRUE_SJF,),
    "unseen100": (TRUE_GITTINS,),
    "unseen50": (TRUE_GITTINS,),
    "sizes": ORACLES,
}
"""Rules with true durations, by study."""


def grid_of(setting: str, rule: str) -> tuple[str, Grid]:
    """Return (setting that defines it, grid) for a rule in a setting; the base setting is the default."""
    own = MORE_GRIDS.get(setting, {}).get(rule)
    return (setting, own) if own is not None else (BASE, GRIDS[rule])


def tuned_of(tuned: TunedFile | None, setting: str, rule: str) -> Tuned | None:
    """Tuning result of a rule in a setting; None: it was not tuned from its present grid."""
    where, grid = grid_of(setting, rule)
    return None if tuned is None else _complete(tuned, where, rule, grid)


def _complete(tuned: TunedFile, where: str, rule: str, grid: Grid) -> Tuned | None:
    found = (tuned.rules if where == BASE else tuned.settings.get(where, {})).get(rule)
    return found if found is not None and found.grid == grid.settings else None


def usable_of(tuned: TunedFile | None, setting: str, rule: str) -> Tuned | None:
    """Return the result of `tuned_of`, or the result in the base setting if the rule was only tuned there."""
    found = tuned_of(tuned, setting, rule)
    if found is None and tuned is not None and rule in GRIDS:
        return _complete(tuned, BASE, rule, GRIDS[rule])
    return found


def untuned_in(tuned: TunedFile | None, study: Study) -> list[str]:
    """Rules of a study without a value from their grid; they run at the base value, or at their default."""
    return [rule for rule in _TUNED[study.name] if tuned_of(tuned, setting_of(study, rule), rule) is None]


def setting_of(study: Study, rule: str) -> str:
    """Setting in which a rule of a study is tuned; `gittins`: half of the jobs preemptible if none are."""
    return "preemptible0.5" if rule == "gittins" and not study.preemptible_frac else study.setting


def tested_in(study: Study, named: Sequence[Policy]) -> list[Policy]:
    """Named policies under test in a study; the default one if none was named."""
    if study.tested == "never":
        return []
    return list(named or (study.default if study.tested == "always" else ()))


def rows_of(study: Study, tuned: TunedFile | None, trace: str, policies: Sequence[Policy]) -> list[Entry]:
    """All rows of a study on one trace, references first and bounds last.

    Args:
        study: The study.
        tuned: The chosen values.
        trace: The trace.
        policies: Named policies under test.
    """
    found = _called(study, "reference", [Policy(name) for name in REFERENCES])
    if for_tested(trace):
        found += _called(study, "policy", tested_in(study, policies))
    if study.name in ("good", "unseen"):
        found += _called(study, "rule", [Policy("fifo-backfill")])
    chosen = dict[str, Policy]()
    for rule in _TUNED[study.name]:
        one = usable_of(tuned, setting_of(study, rule), rule)
        chosen[rule] = default_of(rule) if one is None else one.policy()
        if rule in _AS_IT_IS[study.name]:
            found += _rows(study, "rule", {rule: chosen[rule]})
            if one is not None and not study.own:
                found += _rows(study, "rule", {f"{rule} (by trace)": one.policy(trace)})
    found += _rows(study, "rule", _able(study, chosen))
    return found + _called(study, "oracle", _ORACLES[study.name])


def _rows(study: Study, role: Role, labelled: dict[str, Policy]) -> list[Entry]:
    """Rows by label."""
    return [
        Entry(policy=policy, label=label, role=role, models=study.models)
        for label, policy in labelled.items()
    ]


def _called(study: Study, role: Role, policies: Sequence[Policy]) -> list[Entry]:
    """Rows named as their policies."""
    return _rows(study, role, {policy.name: policy for policy in policies})


def _able(study: Study, chosen: dict[str, Policy]) -> dict[str, Policy]:
    """Return policies with abilities, by label. `gittins` in a label is the tuned value of the rule."""
    default, hand = Policy("gittins"), Policy("qssf-backfill")
    base = chosen.get("gittins", default)
    if study.measure == "jct" or study.own:
        found = {"gittins (default)": default} if base.name != default.name else {}
        own = study.own == UNSEEN and study.preemptible_frac
        return found | ({OWN_SPREAD.name: OWN_SPREAD} if own else {})
    gates = [(share(GATE),), (share(STRICT_GATE),)]
    if study.name == "sharing":
        strict = Policy("pack", name=f"pack {STRICT_GATE:g}", share={"min_speed": STRICT_GATE})
        revised = chosen.get("easy-revised", default_of("easy-revised"))
        return (
            {strict.name: strict}
            | _labelled("gittins", base, gates)
            | _labelled(f"easy {REVISED.label}", revised, gates)
        )
    if study.name == "everything":
        return _labelled("gittins", base, [(), gates[0], *((*one, CORES) for one in gates)]) | _labelled(
            hand.name, hand, [(*gates[0], CORES)]
        )
    if study.name == "dial":
        dial = [(share(GATE), weighed(weight)) for weight in WEIGHTS]
        return {one.name: one for one in hand_rules()} | _labelled("gittins", base, dial)
    return {}


def _labelled(label: str, base: Policy, abilities: Sequence[tuple[Ability, ...]]) -> dict[str, Policy]:
    """Return the policy with each set of abilities, by name in the tables."""
    return {" ".join((label, *(one.label for one in more))): able(base, *more) for more in abilities}


def hand_rules() -> list[Policy]:
    """Return the reference rules of the dial, with one way each to choose SM clocks."""
    base = Policy("qssf-backfill")
    clocks = [
        *map(fixed_clock, (0.9, 0.8, 0.7, 0.6)),
        *map(slowdown, (0.05, 0.1, 0.2)),
        *map(lull, (0.05, 0.2)),
    ]
    shared = able(base, share(GATE))
    alone = [able(base, clock) for clock in clocks]
    return [*alone, shared, *(able(shared, clock) for clock in (*clocks, *map(weighed, WEIGHTS[1:])))]


def is_hand_rule(label: str) -> bool:
    """Whether a row of the dial is one of the hand rules."""
    return not label.startswith("gittins")
