"""Named recipes for the training of strategies."""

from __future__ import annotations

import msgspec

from rlsched.errors import InputError
from rlsched.settings import convert_settings, read_table
from rlsched_agents.dials.evolution import EvolutionConfig
from rlsched_agents.dials.lesson import DialRecipe, PpoConfig
from rlsched_envs.training.sources import Drawn

DEFAULT = DialRecipe()
QUICK = DialRecipe(
    drawn=Drawn(jobs=800, nodes_low=4, nodes_high=6),
    windows=240,
    choosing=120,
    confirming=240,
    constants=EvolutionConfig(generations=12, pairs=120, spread=0.35, step=0.08, columns=()),
    following=EvolutionConfig(generations=6, pairs=120),
    ppo=PpoConfig(clusters=32, rollout_steps=256, rollouts=8, batch_size=2048),
    scales=(1.0,),
)
SMOKE = DialRecipe(
    drawn=Drawn(jobs=120, nodes_low=2, nodes_high=2),
    windows=6,
    choosing=6,
    confirming=6,
    settings=("share.min_gain=0.4",),
    constants=EvolutionConfig(generations=1, pairs=4, columns=()),
    following=EvolutionConfig(generations=1, pairs=4),
    ppo=PpoConfig(clusters=4, rollout_steps=16, rollouts=2, batch_size=32, epochs=1, width=16),
    scales=(1.0,),
)
RECIPES = {"default": DEFAULT, "quick": QUICK, "smoke": SMOKE}


def load_recipe(name: str) -> DialRecipe:
    """Return a recipe by name, or from a TOML file. Fields that are not in the file are as in `default`.

    Raises:
        InputError: there is no recipe of this name, or the file cannot be read.
    """
    if name.endswith(".toml"):
        found = convert_settings(read_table(name, "recipe"), DialRecipe, name)
        assert isinstance(found, DialRecipe)
        return found
    if name not in RECIPES:
        raise InputError(f"--recipe {name}: expected one of {', '.join(RECIPES)}, or a .toml file")
    return msgspec.structs.replace(RECIPES[name])
