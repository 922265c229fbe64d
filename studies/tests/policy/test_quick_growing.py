"""The recipe file next to the studies is `quick` with stages."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rlsched_agents.ppo.recipes import RECIPES, load_recipe
from studies import policy


def test_example_file_is_quick_with_stages() -> None:
    example = load_recipe(str(Path(policy.__file__).with_name("quick-growing.toml")))
    assert [stage.until_frac for stage in example.curriculum] == [0.25, 0.5]
    assert msgspec.structs.replace(example, curriculum=()) == RECIPES["quick"]
