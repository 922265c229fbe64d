"""`rlsched models`: the tables, their JSON, and one line for an unknown name."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from rlsched.cli.traces.models import models
from rlsched.errors import InputError
from rlsched.models.catalogue import load_catalogue
from rlsched.models.catalogue.table import FIELDS, GPU_TYPES


def run_models(*args: str) -> Result:
    return CliRunner().invoke(models, args, catch_exceptions=False)


def test_all_workloads_with_marks_for_fitted_and_assumed_figures() -> None:
    page = run_models("--gpu-type", "Tesla P100-PCIE-16GB").output
    assert "workloads on P100" in page
    assert [name for name in load_catalogue().names if f" {name} " not in page] == []
    (line,) = [line for line in page.splitlines() if " bert-base-squad-b16 " in line]
    util, memory, _, power, *_, speed, _, _, checkpoint = line.split()[1:]
    assert (util[-1], memory[-1], checkpoint[-1]) == ("~", "~", "?")
    assert power.isdigit()
    assert float(speed) == pytest.approx(0.56)


def test_json_has_every_cell_with_status_and_source() -> None:
    report = json.loads(run_models("--json").output)
    catalogue = load_catalogue()
    assert tuple(report) == catalogue.names
    for name, cells in report.items():
        assert tuple(cells) == FIELDS
        for field, cell in cells.items():
            known = catalogue.cell(name, "V100", field)
            assert cell == (known and {"value": known.value, "status": known.status, "source": known.source})


def test_one_workload_with_its_sources() -> None:
    page = run_models("--workload", "gpt2-b4").output
    assert "gpt2-b4: language, 124 million parameters" in page
    assert {kind for kind in GPU_TYPES if f" {kind} " in page} == set(GPU_TYPES)
    assert "muri: stage times of Muri" in page
    assert "; error " in page
    alone = run_models("--workload", "gpt2-b4", "--gpu-type", "A100").output
    assert " A100 " in alone
    assert not any(line.split()[:1] == ["V100"] for line in alone.splitlines())
    assert set(json.loads(run_models("--workload", "gpt2-b4", "--gpu-type", "T4", "--json").output)) == {"T4"}


def test_shares_by_field_and_gpu_type() -> None:
    report = json.loads(run_models("share", "--json").output)
    assert tuple(report) == GPU_TYPES
    assert report["V100"]["speed"] is None
    assert report["V100"]["all"] >= 0.6
    assert report["generic"]["all"] == 0.0
    page = run_models("share", "--gpu-type", "V100").output
    assert f"{100 * report['V100']['util_frac']:.1f} %" in page
    assert "P100" not in page


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (("--workload", "resnet-50"), "expected a workload of the catalogue, got 'resnet-50' .near: resnet"),
        (("--gpu-type", "RTX 3090"), "expected one of V100, P100, A100, H100, T4, generic.*got 'RTX 3090'"),
        (("share", "--gpu-type", ""), "expected one of V100"),
    ],
)
def test_unknown_name_is_one_line_and_exit_code_2(args: tuple[str, ...], line: str) -> None:
    with pytest.raises(InputError, match=line) as caught:
        run_models(*args)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
