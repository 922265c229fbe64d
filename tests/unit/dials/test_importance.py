"""Permutation importance: of a strategy with one significant column, and of columns without weight."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.util import tensor_util

from rlsched.board.curves import Curves
from rlsched.decide.dials.observing import NAMES
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy
from rlsched.decide.dials.turning import RANGES
from rlsched.decide.policies.policy import Policy
from rlsched.workload.synth import synthesize
from rlsched_agents.dials.importance import ColumnImportance, Importance, columns_used, importance_of, picture
from rlsched_agents.dials.training_curves import DESCRIPTIONS, LAYOUT
from rlsched_envs.training.sources import EpisodeSource
from rlsched_envs.training.windows import Drawn

FOUND = Importance(
    3.0, (ColumnImportance("free", 2.5, 1.0, 4.0), ColumnImportance("gpus", -0.1, -0.2, 0.1)), 24
)


def strategy(**weights: float) -> Strategy:
    """A strategy that opens sharing (a dial) by these columns."""
    layer = np.zeros((NUM_DIALS, NUM_COLUMNS + 1))
    for name, weight in weights.items():
        layer[list(RANGES).index("gate_pair"), NAMES.index(name)] = weight
    return Strategy.from_layers(layer)


@pytest.mark.slow
def test_deciding_column_matters_and_a_constant_one_does_not() -> None:
    """Sharing is off by the settings and turned on by `shares`, a constant, and by the waiting jobs."""
    source = EpisodeSource.from_trace(*synthesize("helios", jobs=2_000, load=1.0, gpus=64, seed=3))
    drawn = Drawn(jobs=150, nodes_low=2, nodes_high=2, energy_weights=(0.0,), kinds=(0,))
    policy = Policy("tuned", share={"min_gain": 0.8})
    mine = strategy(waiting_jobs=-2.0, shares=-1.0)
    assert columns_used(mine) == sorted((NAMES.index("waiting_jobs"), NAMES.index("shares")))
    found = importance_of(mine, policy, [source], drawn, 0, windows=8)
    by_name = {one.name: one for one in found.columns}
    assert set(by_name) == {"waiting_jobs", "shares"}
    assert by_name["shares"].lost == 0.0, "it is the same at all times"
    assert by_name["waiting_jobs"].lost != 0.0
    again = importance_of(mine, policy, [source], drawn, 0, windows=8)
    assert again == found


def test_importance_is_an_image_in_the_event_file(tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    curves = Curves(tmp_path, DESCRIPTIONS, LAYOUT)
    png, width, height = picture(FOUND)
    curves.image("importance/columns", png, (width, height))
    curves.close()
    loaded = EventMultiplexer()
    loaded.AddRunsFromDirectory(str(tmp_path)).Reload()
    assert set(loaded.PluginRunToTagToContent("images")["."]) == {"importance/columns"}
    assert "held-out" in loaded.SummaryMetadata(".", "importance/columns").summary_description
    kept = tensor_util.make_ndarray(loaded.Tensors(".", "importance/columns")[0].tensor_proto)
    assert (int(kept[0]), int(kept[1])) == (width, height)
    drawn = image.imread(BytesIO(kept[2]), format="png")
    assert drawn.shape[:2] == (height, width)
    assert len(np.unique(drawn.reshape(-1, drawn.shape[2]), axis=0)) > 10
    assert "| free | 2.50 | 1.00 to 4.00 |" in FOUND.table()
