"""Curves of real runs: each has a description, and none is always 0."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2
from tensorboard.util import tensor_util

import rlsched as rs
from rlsched.board.convert import draw_run
from rlsched.board.curves import Curves, description_of
from rlsched.board.reader import read_runs
from rlsched.board.tags import DESCRIPTIONS
from rlsched.broker.state import predictions
from rlsched.decisions.reading import StoreReader
from rlsched.workload.synth import synthesize
from tests.support.event_files import assert_all_are_described_and_none_is_always_0, event_values


def test_curves_of_decisions_are_described_and_none_is_always_0(tmp_path: Path) -> None:
    trace, spec = synthesize("helios", jobs=120, load=1.2, gpus=16, seed=2)
    rs.simulate(trace, spec, ["tuned", "ppo"], records=tmp_path / "records")
    for policy in ("tuned", "ppo"):
        draw_run(tmp_path / "records" / policy, tmp_path / policy)
        run = event_values(tmp_path / policy)
        assert_all_are_described_and_none_is_always_0(run)
        assert "decisions/kind_start_count" in run
        assert not [tag for tag in run if tag.startswith("policy/")]
        assert "decisions/source_engine_count" not in run


def test_course_of_the_cluster_is_drawn_at_the_traces_times(tmp_path: Path) -> None:
    trace, spec = synthesize("helios", jobs=120, load=1.2, gpus=16, seed=2)
    rs.simulate(trace, spec, "fifo-backfill", models=rs.Models(), records=tmp_path / "records")
    draw_run(tmp_path / "records" / "fifo-backfill", tmp_path / "log")
    loaded = EventMultiplexer()
    loaded.AddRunsFromDirectory(str(tmp_path / "log")).Reload()

    def curve(name: str) -> tuple[np.ndarray, np.ndarray]:
        points = loaded.Tensors(".", f"cluster/{name}")
        assert [one.wall_time - points[0].wall_time for one in points] == pytest.approx(
            [one.step - points[0].step for one in points], abs=1.0
        )
        return np.array([one.wall_time for one in points]), np.array(
            [float(tensor_util.make_ndarray(one.tensor_proto)) for one in points]
        )

    reader = StoreReader(tmp_path / "records" / "fifo-backfill")
    reader.refresh()
    jobs, attempts = [*reader.timeline.jobs.values()], reader.timeline.attempts
    for name, least, most in (("1_gpu", 0, 1), ("2_to_8_gpus", 2, 8)):
        for at_s, value in zip(*curve(f"waiting_{name}_jobs"), strict=True):
            assert value == sum(job.waits_at(at_s) for job in jobs if least <= job.num_gpus <= most)
    for at_s, value in zip(*curve("busy_frac"), strict=True):
        held = sum(
            len(one.gpus) * one.share_milli / 1000 for one in attempts if one.start_s <= at_s < one.end_s
        )
        assert value == pytest.approx(held / 16, abs=1e-6)
    times_s, waits_s = curve("wait_mean_s")
    assert waits_s.max() > 0.0
    assert times_s.max() <= reader.timeline.last_s
    assert curve("power_w")[1].max() > 100.0


@pytest.mark.parametrize("name", predictions._CURVES)
def test_other_curves_of_a_broker_are_described(name: str) -> None:
    for tag in (f"prediction/{name}", f"prediction/{name}_running_mean", "drift/active", "drift/value_free"):
        assert description_of(tag, DESCRIPTIONS)


def test_curve_is_written_from_its_first_nonzero_value(tmp_path: Path) -> None:
    curves = Curves(tmp_path, {"a|b": "one of two"}, {})
    for step, a in enumerate([0.0, 0.0, 0.0, 0.0, 2.0, 0.0]):
        curves.add(step, {"a": a, "b": 0.0})
    curves.close()
    assert event_values(tmp_path)["a"].description == "one of two"
    points = read_runs(tmp_path)["."].scalars
    assert points == {"a": [(0, 0.0), (3, 0.0), (4, 2.0), (5, 0.0)]}, "the nonzero curves, then all"
    loaded = EventMultiplexer()
    loaded.AddRunsFromDirectory(str(tmp_path)).Reload()
    assert [one.step for one in loaded.Tensors(".", "a")] == [0, 3, 4, 5]


def test_charts_and_settings_are_readable_by_tensorboard(tmp_path: Path) -> None:
    curves = Curves(tmp_path, {"m/.*": "A measure."}, {"Both": {"policy and rule": ["m/.*"]}})
    curves.settings({"rate": 0.5, "layers": [1, 2], "fast": True}, ["m/policy"])
    curves.add(0, {"m/policy": 0.5, "m/rule": 1.0})
    curves.close()
    loaded = EventMultiplexer()
    loaded.AddRunsFromDirectory(str(tmp_path)).Reload()
    assert loaded.PluginRunToTagToContent("custom_scalars") == {".": {"custom_scalars__config__": b""}}
    tensor = loaded.Tensors(".", "custom_scalars__config__")[0].tensor_proto
    layout = layout_pb2.Layout.FromString(tensor_util.make_ndarray(tensor).item())
    assert layout.category[0].chart[0].multiline.tag == ["m/.*"]
    about = loaded.PluginRunToTagToContent("hparams")["."]
    started = plugin_data_pb2.HParamsPluginData.FromString(about["_hparams_/session_start_info"])
    values = started.session_start_info.hparams
    assert (values["rate"].number_value, values["layers"].string_value) == (0.5, "[1, 2]")
    experiment = plugin_data_pb2.HParamsPluginData.FromString(about["_hparams_/experiment"]).experiment
    assert [one.name.tag for one in experiment.metric_infos] == ["m/policy"]
    assert {one.name: one.type for one in experiment.hparam_infos} == {
        "rate": api_pb2.DATA_TYPE_FLOAT64,
        "layers": api_pb2.DATA_TYPE_STRING,
        "fast": api_pb2.DATA_TYPE_BOOL,
    }
