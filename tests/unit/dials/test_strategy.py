"""Strategy files: they are read back, and invalid ones are refused in one line."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from rlsched.cluster.dials import CLIPPED, NETWORK, PRICE_DIALS
from rlsched.cluster.spec import NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.dials import turning
from rlsched.decide.dials.observing import NAMES, PRICE_COLUMNS
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy, dials_of
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.files import to_send, with_whole_paths
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import permit
from rlsched.errors import InputError

LINEAR = Strategy.from_layers(
    np.arange(NUM_DIALS * (NUM_COLUMNS + 1), dtype=float).reshape(NUM_DIALS, -1) / 1000.0
)


def test_strategy_is_read_back(tmp_path: Path) -> None:
    LINEAR.write(tmp_path / "one.json")
    assert Strategy.read(tmp_path / "one.json") == LINEAR
    assert Strategy.read(tmp_path / "one.json").digest == LINEAR.digest


def test_policy_has_the_strategy_of_its_file(tmp_path: Path) -> None:
    LINEAR.write(tmp_path / "one.json")
    policy = Policy("tuned", dials=str(tmp_path / "one.json"))
    assert policy.rule.strategy == LINEAR
    assert policy.rule.steps.dialled
    assert Policy("tuned").rule.strategy is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"columns": (*NAMES[:-1], "phase_of_the_moon")},
            "columns: this version does not have 'phase_of_the_moon'",
        ),
        ({"dials": ("gate_more",)}, f"dials: this version expects the first of its {NUM_DIALS}, in order"),
        ({"dials": ()}, f"dials: this version expects at least one of its {NUM_DIALS}, got none"),
        ({"dials": ("gate_pair",)}, f"layers: expected 1 outputs, got {NUM_DIALS}"),
        ({"layers": ()}, "layers: expected 1 or 3 matrices, got 0"),
        ({"layers": (((0.0,),),)}, f"layers: matrix 1: expected rows of {NUM_COLUMNS + 1} weights"),
        ({"layers": (LINEAR.layers[0][:2],)}, f"layers: expected {NUM_DIALS} outputs, got 2"),
        (
            {"layers": (((float("nan"),) * (NUM_COLUMNS + 1),) * NUM_DIALS,)},
            "layers: matrix 1: expected finite weights",
        ),
    ],
)
def test_mismatch_is_one_line(change: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=r"^mine\.json: ") as error:
        msgspec.structs.replace(LINEAR, **change).check("mine.json")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot read this strategy"), ("{", "expected a strategy file"), ("{}", "columns")],
)
def test_invalid_file(content: str | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=r"some\.json") as error:
        Strategy.read(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("hidden", [(), (5, 4)])
def test_strategy_of_an_earlier_version_ignores_new_columns_and_dials(hidden: tuple[int, ...]) -> None:
    columns, dials = NUM_COLUMNS - 12, NUM_DIALS - 2
    sizes, rng = (columns, *hidden, dials), np.random.default_rng(1)
    layers = [rng.normal(size=(after, before + 1)) for before, after in pairwise(sizes)]
    old = Strategy.from_layers(*layers)
    old.check("old.json")
    assert (old.columns, len(old.dials)) == (NAMES[:columns], dials)
    assert not old.follows_price
    x = rng.normal(size=NUM_COLUMNS)
    found = x
    for layer in old.matrices:
        found = np.tanh(layer[:, :-1] @ found + layer[:, -1])
    expected = x[:columns]
    for layer in layers:
        expected = np.tanh(layer[:, :-1] @ expected + layer[:, -1])
    np.testing.assert_allclose(found[:dials], expected)
    assert (found[dials:] == 0.0).all()


def test_strategy_that_was_trained_without_prices_does_not_follow_them() -> None:
    sizes, rng = (NUM_COLUMNS, 5, 4, NUM_DIALS), np.random.default_rng(1)
    whole = Strategy.from_layers(*(rng.normal(size=(after, before + 1)) for before, after in pairwise(sizes)))
    assert whole.follows_price
    blind = whole.without_prices()
    blind.check("blind.json")
    assert not blind.follows_price
    assert (blind.columns, blind.dials) == (NAMES[: NAMES.index("price")], whole.dials[: -len(PRICE_DIALS)])
    x = rng.normal(size=NUM_COLUMNS)
    for name in PRICE_COLUMNS:
        x[NAMES.index(name)] = 0.0
    (mine, _), (theirs, _) = through(blind, x), through(whole, x)
    np.testing.assert_allclose(mine[: -len(PRICE_DIALS)], theirs[: -len(PRICE_DIALS)])
    x[NAMES.index("price")] = 1.0
    assert (through(blind, x)[0] == mine).all()


def through(strategy: Strategy, seen: NDArray[np.float64]) -> tuple[NDArray[np.float64], bool]:
    """Dials that the kernel of a strategy computes from an observation, and whether they are valid."""
    d = strategy.arrays(1)
    clips = bool(d.controller[0] == CLIPPED)
    turning._layer(d.layer1, seen, d.scratch[0], False)
    turning._layer(d.layer2, d.scratch[0], d.scratch[1], False)
    turning._layer(d.output, d.scratch[1], d.action, clips)
    return d.action.copy(), bool(turning._in_range(d.action))


@pytest.mark.parametrize("widths", [(4, 4), (3, 40), (40, 3)])
@pytest.mark.parametrize("output", ["tanh", "clip"])
def test_hidden_layers_may_have_any_widths(widths: tuple[int, int], output: Literal["tanh", "clip"]) -> None:
    """A second layer wider than the first was written beyond its scratch."""
    rng, sizes = np.random.default_rng(0), (NUM_COLUMNS, *widths, NUM_DIALS)
    layers = [rng.normal(size=(after, before + 1)) for before, after in pairwise(sizes)]
    strategy, x = Strategy.from_layers(*layers, output=output), rng.normal(size=NUM_COLUMNS)
    strategy.check("mine.json")
    found, fits = through(strategy, x)
    np.testing.assert_allclose(dials_of(layers, x[None], output)[0], found)
    for layer in layers[:-1]:
        x = np.tanh(layer[:, :-1] @ x + layer[:, -1])
    last = layers[-1][:, :-1] @ x + layers[-1][:, -1]
    np.testing.assert_allclose(found, np.tanh(last) if output == "tanh" else np.clip(last, -1, 1))
    assert fits


def test_clipped_nan_output_is_refused() -> None:
    layers = [np.zeros((2, NUM_COLUMNS + 1)), np.zeros((2, 3)), np.zeros((NUM_DIALS, 3))]
    strategy = Strategy.from_layers(*layers, output="clip")
    assert through(strategy, np.zeros(NUM_COLUMNS))[1]
    found, fits = through(strategy, np.full(NUM_COLUMNS, np.nan))
    assert np.isnan(found).all(), "clipping leaves it for the check"
    assert not fits


def test_output_kind_is_kept_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    clipped = msgspec.structs.replace(LINEAR, output="clip")
    clipped.write(tmp_path / "c.json")
    assert Strategy.read(tmp_path / "c.json") == clipped
    assert clipped.digest != LINEAR.digest
    assert b"output" not in msgspec.json.encode(LINEAR), "digests of files without it stay"
    text = (tmp_path / "c.json").read_text().replace('"clip"', '"relu"')
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(InputError, match=r"c\.json: expected a strategy file .*'relu'.*output"):
        Strategy.read(tmp_path / "c.json")


def test_jobs_before_the_first_node_are_counted_in_bounds(tmp_path: Path) -> None:
    """A broker begins with no node and so no partition: kernels write to row 0 of partition arrays."""
    LINEAR.write(tmp_path / "one.json")
    scheduler = load_scheduler(Policy("tuned", dials=str(tmp_path / "one.json")))
    state = ClusterState([], OrderedQueue(scheduler.order))
    permit(state, scheduler)
    assert state.num_partitions == 0
    for _ in range(2):
        dials = state.arrays.dials
        assert (
            len(dials.dial) == len(dials.counted) == len(dials.seen) == len(state.arrays.derived.queue) == 1
        )
        assert dials.controller[0] == NETWORK
        state.add_job(num_gpus=1, submit_s=1.0, predicted_s=60.0, spread=1.0)
        state.add_node(NodeSpec(name=f"n{len(state.nodes)}", gpus=4))
    assert state.num_partitions == 1


def test_policy_is_sent_with_its_strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LINEAR.write(tmp_path / "mine.json")
    (tmp_path / "mine.toml").write_text('base = "easy"\ndials = "mine.json"\n')
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    sent = to_send(Policy.read("../mine.toml"))
    (tmp_path / "mine.json").unlink()
    there = Policy.parse(sent.toml, name=sent.name)
    assert (there.name, there) == ("mine", sent)
    assert Strategy.of_setting(there.settings.dials) == LINEAR
    assert to_send(there) == with_whole_paths(there) == there, "unchanged"
    strategy = there.rule.strategy
    assert strategy is not None
    assert strategy.digest == LINEAR.digest


def test_strategy_is_checked_before_it_is_sent(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("[1]")
    (tmp_path / "mine.toml").write_text('base = "easy"\ndials = "mine.json"\n')
    with pytest.raises(InputError, match=r"mine\.json: expected a strategy file"):
        to_send(Policy.read(tmp_path / "mine.toml"))
    with pytest.raises(InputError, match="dials: expected a strategy file"):
        Strategy.of_setting("{}")
    away = Policy("easy", dials="/on/the/broker/only.json")
    assert to_send(away) == away


def test_files_of_a_policy_file_are_found_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    (tmp_path / "m.zip").touch()
    (tmp_path / "own.toml").write_text('rule = "mine.py:Waits"\n')
    (tmp_path / "net.toml").write_text('rule = "sb3"\ncheckpoint = "m.zip"\n')
    assert Policy.read(tmp_path / "own.toml").settings.rule == f"{tmp_path / 'mine.py'}:Waits"
    assert Policy.read(tmp_path / "net.toml").settings.checkpoint == str(tmp_path / "m.zip")
    (tmp_path / "far.toml").write_text('rule = "sb3"\ncheckpoint = "runs/x"\n')
    assert Policy.read(tmp_path / "far.toml").settings.checkpoint == "runs/x", "as from a command line"
