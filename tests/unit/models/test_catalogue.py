"""The catalogue of workloads: figures with status and source, draws keyed by the job, measured pairs."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from rlsched.errors import InputError
from rlsched.models.arrays import TRAIT, ModelArrays
from rlsched.models.catalogue import Catalogue, load_catalogue
from rlsched.models.catalogue.catalogue import BOUNDS, catalogue_type
from rlsched.models.catalogue.draw import BURST_SHARE, CLASSES, class_weights, job_classes
from rlsched.models.catalogue.table import (
    ASSUMED,
    DEFINED,
    FAMILIES,
    FAMILY_OF,
    FIELDS,
    GPU_TYPES,
    MEASURED,
    REFERENCE_TYPE,
    STATUSES,
    read_sources,
)
from rlsched.workload.trace import Trace

LATENT = ("sensitivity", "pressure")


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load_catalogue()


def jobs(count: int, *, gpus: float = 1, duration_s: float = 3600.0, apart_s: float = 4000.0) -> Trace:
    """Jobs so far apart that no two are of one burst."""
    return Trace.from_columns(
        name="t",
        submit_s=np.arange(count) * apart_s,
        duration_s=np.full(count, duration_s),
        num_gpus=np.full(count, gpus),
    )


def util(catalogue: Catalogue, numbers: np.ndarray) -> float:
    """Mean utilisation of these workloads on the reference type."""
    return float(catalogue.traits([REFERENCE_TYPE])["util_frac"][numbers, 0].mean())


# --- the cells


def test_every_workload_has_every_field_on_every_gpu_type(catalogue: Catalogue) -> None:
    assert 50 <= len(catalogue.names) <= 95
    assert len({family.domain for family in FAMILIES.values()}) >= 7
    missing = [
        (name, kind, field)
        for name in catalogue.names
        for kind in GPU_TYPES
        for field in FIELDS
        if field not in LATENT and catalogue.cell(name, kind, field) is None
    ]
    assert missing == []


def test_every_cell_has_a_status_a_known_source_and_a_value_within_bounds(catalogue: Catalogue) -> None:
    for (name, kind, field), cell in catalogue.cells.items():
        where = (name, kind, field, cell)
        low, high = BOUNDS[field]
        assert name in FAMILY_OF, where
        assert kind in GPU_TYPES, where
        assert cell.status in STATUSES, where
        assert cell.source in catalogue.sources, where
        assert cell.source.startswith("assumed:") == (cell.status == ASSUMED), where
        assert math.isfinite(cell.value), where
        assert low <= cell.value <= high, where


def test_every_fit_states_its_error(catalogue: Catalogue) -> None:
    fitted = {cell.source for cell in catalogue.cells.values() if cell.status == "fitted"}
    alike = {"gavel", "zeus"}
    assert [key for key in sorted(fitted - alike) if not catalogue.sources[key].error] == []


def test_every_source_and_reason_is_used(catalogue: Catalogue) -> None:
    used = {cell.source for cell in catalogue.cells.values()}
    assert set(read_sources()) - used == set()


def test_only_the_speed_on_the_reference_type_is_1_by_definition(catalogue: Catalogue) -> None:
    defined = {key[1:] for key, cell in catalogue.cells.items() if cell.status == DEFINED}
    assert defined == {(REFERENCE_TYPE, "speed")}
    assert {catalogue.cells[name, REFERENCE_TYPE, "speed"].value for name in catalogue.names} == {1.0}


def test_most_used_figures_of_v100_and_p100_are_measured_or_fitted(catalogue: Catalogue) -> None:
    everything = range(1, len(catalogue.names) + 1)
    assert catalogue.measured_share(everything, ["V100"]) >= 0.6
    assert catalogue.measured_share(everything, ["P100"]) >= 0.6
    assert catalogue.measured_share(everything, ["generic"]) == 0.0


def test_cell_counts_as_often_as_its_workload_occurs(catalogue: Catalogue) -> None:
    sure, guessed = catalogue.number("resnet50-imagenet-b64"), catalogue.number("a3c-pong-b4")
    share = catalogue.measured_share([sure, sure, sure, guessed], ["V100"], ["util_frac"])
    assert share == 0.75
    assert catalogue.measured_share([0, sure], ["V100"], ["util_frac"]) == 0.5
    assert math.isnan(catalogue.measured_share([sure], ["V100"], ["speed"]))
    with pytest.raises(InputError, match=r"util_frac.*got 'utilisation'"):
        catalogue.measured_share([sure], ["V100"], ["utilisation"])


def test_most_workloads_fit_a_16_gb_gpu(catalogue: Catalogue) -> None:
    memory = catalogue.traits(["V100"])["memory_mib"][1:, 0]
    assert memory.max() < 16_160


# --- names and arrays


def test_numbers_are_rows_and_zero_is_no_workload(catalogue: Catalogue) -> None:
    assert catalogue.number("") == 0
    assert [catalogue.number(name) for name in catalogue.names] == list(range(1, len(catalogue.names) + 1))


@pytest.mark.parametrize(
    ("name", "near"),
    [("resnet50-b64", "resnet50-imagenet-b64"), ("GPT2-b4", "gpt2-b4"), ("squad", "bert-base-squad")],
)
def test_unknown_name_is_an_error_that_lists_near_matches(catalogue: Catalogue, name: str, near: str) -> None:
    with pytest.raises(InputError, match=near):
        catalogue.number(name)


@pytest.mark.parametrize(
    ("kind", "stands_for"),
    [
        ("V100", "V100"), ("Tesla V100-SXM2-32GB", "V100"), ("v100m16", "V100"), ("P100", "P100"),
        ("H200", "H100"), ("NVIDIA A100-SXM4-80GB", "A100"), ("T4", "T4"),
        ("G2", "generic"), ("", "generic"), ("K80", "generic"),
    ],
)  # fmt: skip
def test_gpu_types_by_the_names_of_clusters(kind: str, stands_for: str) -> None:
    assert catalogue_type(kind) == stands_for


def test_arrays_have_a_row_per_workload_and_a_column_per_type(catalogue: Catalogue) -> None:
    arrays = catalogue.arrays(["P100", "V100", "P100"])
    size = 1 + len(catalogue.names)
    assert isinstance(arrays, ModelArrays)
    assert arrays.gpu.shape == (3,)
    assert arrays.trait.shape == (size, 3)
    assert arrays.trait.dtype == TRAIT
    assert arrays.pair.shape == (3, size, size)
    row = catalogue.number("bert-base-squad-b16")
    for field in FIELDS:
        for column, kind in enumerate(("P100", "V100")):
            cell = catalogue.cell("bert-base-squad-b16", kind, field)
            expected = np.nan if cell is None else cell.value
            np.testing.assert_equal(arrays.trait[field][row, column], expected)
        np.testing.assert_equal(arrays.trait[field][:, 0], arrays.trait[field][:, 2])


def test_unknown_workload_has_the_medians_and_is_a_stranger(catalogue: Catalogue) -> None:
    trait = catalogue.traits(["V100"])
    for field in FIELDS:
        if field in LATENT:
            assert np.isnan(trait[field][0, 0])
        else:
            assert trait[field][0, 0] == np.median(trait[field][1:, 0])
    assert np.isnan(catalogue.pair_speeds(["V100"])[:, 0, :]).all()


def test_assumed_scale_changes_only_assumed_cells_and_within_bounds(catalogue: Catalogue) -> None:
    low, high = load_catalogue(assumed_scale=0.7), load_catalogue(assumed_scale=1.3)
    moved = 0
    for key, cell in catalogue.cells.items():
        if cell.status != ASSUMED:
            assert low.cells[key] == cell == high.cells[key]
            continue
        below, above = BOUNDS[key[2]]
        assert low.cells[key].value == pytest.approx(min(max(0.7 * cell.value, below), above))
        assert high.cells[key].value == pytest.approx(min(max(1.3 * cell.value, below), above))
        moved += high.cells[key].value > cell.value
    assert moved > 1000
    trace = jobs(200)
    np.testing.assert_array_equal(high.draw(trace, 3), catalogue.draw(trace, 3))


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_invalid_scale_is_an_error(scale: float) -> None:
    with pytest.raises(InputError, match="above 0"):
        load_catalogue(assumed_scale=scale)


# --- the draw


def test_draw_depends_only_on_the_seed(catalogue: Catalogue) -> None:
    trace = jobs(500)
    first = catalogue.draw(trace, 1)
    assert first.dtype == np.int32
    np.testing.assert_array_equal(first, catalogue.draw(trace, 1))
    assert (first != catalogue.draw(trace, 2)).mean() > 0.8
    assert first.min() >= 1
    assert first.max() <= len(catalogue.names)


def test_draw_is_keyed_by_the_job_not_by_its_row(catalogue: Catalogue) -> None:
    trace = jobs(400, apart_s=100.0)
    some = np.arange(3, 400, 7)
    np.testing.assert_array_equal(catalogue.draw(trace.select(some), 5), catalogue.draw(trace, 5)[some])


def test_large_gangs_are_large_models_and_small_short_jobs_leave_gpus_idle(catalogue: Catalogue) -> None:
    count = 3000
    short, long = jobs(count, duration_s=120.0), jobs(count, duration_s=40_000.0)
    gang = catalogue.draw(jobs(count, gpus=8), 0)
    assert util(catalogue, catalogue.draw(short, 0)) < util(catalogue, catalogue.draw(long, 0)) - 0.1
    assert util(catalogue, gang) > util(catalogue, catalogue.draw(short, 0)) + 0.2
    assert (
        util(catalogue, catalogue.draw(jobs(count, gpus=0.25), 0))
        < util(catalogue, catalogue.draw(long, 0)) - 0.2
    )
    usual = [FAMILIES[FAMILY_OF[catalogue.names[number - 1]]].gang for number in gang]
    assert np.mean(usual) > 0.9


def test_shares_of_the_draw_equal_the_weights(catalogue: Catalogue) -> None:
    count = 20_000
    drawn = np.bincount(catalogue.draw(jobs(count), 7), minlength=1 + len(catalogue.names))[1:] / count
    rows = class_weights(catalogue.traits([REFERENCE_TYPE])["util_frac"][1:, 0])
    expected = np.diff(rows[CLASSES.index("one")], prepend=0.0)
    assert np.abs(drawn - expected).max() < 4 * math.sqrt(expected.max() / count)


def test_jobs_without_gpus_have_no_workload(catalogue: Catalogue) -> None:
    assert not catalogue.draw(jobs(20, gpus=0), 0).any()
    np.testing.assert_array_equal(
        job_classes(np.array([0.0, 0.5, 1.0]), np.array([1.0, 1.0, 1.0])), [-1, 0, 1]
    )


def test_burst_is_mostly_of_one_workload(catalogue: Catalogue) -> None:
    count = 2000
    burst = Trace.from_columns(
        name="t",
        submit_s=np.arange(count) * 1.0,
        duration_s=np.full(count, 3600.0),
        num_gpus=np.ones(count),
        user=np.full(count, "ada"),
        vc=np.full(count, "lab"),
    )
    numbers = catalogue.draw(burst, 0)
    assert np.bincount(numbers).max() / count == pytest.approx(BURST_SHARE, abs=0.05)


def test_named_workload_is_used_and_an_unknown_one_is_an_error(catalogue: Catalogue) -> None:
    def trace(names: list[str]) -> Trace:
        return Trace.from_columns(
            name="t",
            submit_s=[0, 1, 2],
            duration_s=[9, 9, 9],
            num_gpus=[1, 0, 1],
            extra={"workload": np.array(names)},
        )

    numbers = catalogue.draw(trace(["gpt2-b4", "dqn-b128", ""]), 0)
    assert [catalogue.names[number - 1] for number in numbers[:2]] == ["gpt2-b4", "dqn-b128"]
    assert numbers[2] >= 1
    with pytest.raises(InputError, match=r"job 1, column workload: .*'gpt3-b4' \(near: gpt2-b4"):
        catalogue.draw(trace(["gpt2-b4", "gpt3-b4", ""]), 0)


# --- against the facts


def test_pairs_equal_the_measurements(catalogue: Catalogue, shared_data: Path) -> None:
    jobs_of = {
        "resnet18-cifar10-b32": "ResNet-18 (batch size 32)",
        "resnet50-imagenet-b64": "ResNet-50 (batch size 64)",
        "lstm-wikitext2-b20": "LM (batch size 20)",
        "transformer-multi30k-b128": "Transformer (batch size 128)",
        "autoencoder-movielens20m-b1024": "Recommendation (batch size 1024)",
        "a3c-pong-b4": "A3C",
        "cyclegan-monet2photo-b1": "CycleGAN",
    }
    name_of = {job: name for name, job in jobs_of.items()}
    speeds = dict(zip(("v100", "p100"), catalogue.pair_speeds(["V100", "P100"]), strict=True))
    seen = 0
    with (shared_data / "facts" / "pair_speeds_gavel.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            alone = row["gpus1"] == row["gpus2"] == "1" and row["gpu"] in speeds
            if alone and row["job1"] in name_of and row["job2"] in name_of and row["job1"] != row["job2"]:
                a, b = (catalogue.number(name_of[row[job]]) for job in ("job1", "job2"))
                fits = float(row["total"]) > 0
                for first, second, speed in ((a, b, row["rel1"]), (b, a, row["rel2"])):
                    expected = float(speed) if fits else np.nan
                    assert speeds[row["gpu"]][first, second] == pytest.approx(expected, rel=1e-3, nan_ok=True)
                    seen += fits
    assert seen > 100


def test_measured_cells_equal_the_measurements(catalogue: Catalogue, shared_data: Path) -> None:
    wanted = {("V100", 64): "V100", ("P100", 64): "P100"}
    time_s: dict[str, float] = {}
    with (shared_data / "facts" / "power_limit_curves.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            kind = wanted.get((row["gpu"], int(row["batch_size"])))
            if row["dataset"] == "imagenet" and kind and float(row["pl_frac"]) == 1:
                time_s[kind] = float(row["time_per_epoch"])
                cell = catalogue.cells["resnet50-imagenet-b64", kind, "dynamic_w"]
                static_w = catalogue.arrays([kind]).gpu["static_w"][0]
                assert cell.status == MEASURED
                assert cell.value == pytest.approx(float(row["average_power"]) - static_w, rel=1e-3)
    speed = catalogue.cells["resnet50-imagenet-b64", "P100", "speed"]
    assert speed.status == MEASURED
    assert speed.value == pytest.approx(time_s["V100"] / time_s["P100"], rel=1e-3)
