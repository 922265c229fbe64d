"""The policy that ships: its files fit this version, and its card has its measurements."""

from __future__ import annotations

from rlsched.decide.dials.strategy import STRATEGY_FILE, Strategy, default_checkpoint
from rlsched.decide.policies.policy import POLICY_FILE, Policy
from rlsched.decide.registry import load_scheduler
from rlsched.workload.synth import synthesize
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.modelling import Models


def test_it_is_priced_with_the_shipped_strategy() -> None:
    folder = default_checkpoint()
    strategy = Strategy.read(folder / STRATEGY_FILE)
    assert strategy.digest in (folder / "CARD.md").read_text(encoding="utf-8")
    written = Policy.read(folder / POLICY_FILE)
    assert written.with_settings(dials="") == Policy("priced") == Policy("ppo").with_settings(dials="")
    assert load_scheduler(written).strategy == load_scheduler("ppo").strategy == strategy


def test_it_is_a_network_with_the_ranges_of_its_training() -> None:
    strategy = Strategy.of_setting("default")
    assert len(strategy.layers) == 3
    assert strategy.familiar is not None
    assert list(strategy.familiar.columns) == list(strategy.columns)


def test_dials_move_only_with_models() -> None:
    """They were trained with models: without models `ppo` starts the same jobs as `tuned`."""
    trace, spec = synthesize("helios", jobs=400, load=1.1, gpus=32, seed=4)

    def starts(policy: str, models: Models | None) -> list[float]:
        rule = Policy(policy).rule
        found: list[float] = (
            Engine(trace, spec, order=rule.order, models=models).run_rule(rule).start_s.tolist()
        )
        return found

    assert starts("ppo", None) == starts("tuned", None)
    assert starts("ppo", Models()) != starts("tuned", Models())


def test_card_states_what_was_confirmed() -> None:
    card = (default_checkpoint() / "CARD.md").read_text(encoding="utf-8")
    assert "confirmed" in card
    for row in ("ppo", "ppo, prices"):
        assert f"| {row} | confirming | " in card
    for what in ("imitation", "ppo"):
        assert card.count(f"| {what}, seed ") == 10, "five seeds, without and with prices"
