"""A cluster description: errors are one line that names the group."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlsched.cluster.spec import ClusterSpec, EnergySignals
from rlsched.errors import ClusterSpecError

TOML = 'name = "c"\n\n[[nodes]]\ncount = 2\ngpus = 4\n\n[[nodes]]\ngpus = 4\nvc = "{vc}"\n'


@pytest.mark.parametrize("vc", ["", "shared"])
def test_vc_without_a_separate_name_is_refused(vc: str, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(TOML.format(vc=vc))
    with pytest.raises(ClusterSpecError) as caught:
        ClusterSpec.read(path)
    assert str(caught.value) == (
        f"{path}: nodes[1]: vc {vc!r} cannot be the name of a virtual cluster; "
        "leave vc out for nodes that serve every one"
    )


def test_description_is_read_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('preemptible = "all"\nmax_retries = 2\n' + TOML.format(vc="physics"))
    spec = ClusterSpec.read(path)
    assert (spec.preemptible, spec.max_retries) == ("all", 2)
    assert [(node.name, node.gpus, node.vc) for node in spec.expand()] == [
        ("n0", 4, None),
        ("n1", 4, None),
        ("n2", 4, "physics"),
    ]
    again = tmp_path / "again.toml"
    again.write_text(spec.to_toml())
    assert ClusterSpec.read(again) == spec


@pytest.mark.parametrize(
    ("energy", "expected"),
    [
        ('currency = "EUR"', "energy: expected price or carbon, a CSV file, or a power limit; got none"),
        ('price = "p"\nknown_ahead_h = 25', "energy.known_ahead_h: expected hours from 0 to 24, got 25"),
        ('price = "p"\nfollow = "carbon"', "energy.follow: expected energy.carbon to name a file, got none"),
    ],
)
def test_wrong_energy_is_refused(energy: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(TOML.format(vc="a").replace("\n\n", f"\n[energy]\n{energy}\n", 1))
    with pytest.raises(ClusterSpecError) as caught:
        ClusterSpec.read(tmp_path / "c.toml")
    assert str(caught.value) == f"{tmp_path / 'c.toml'}: {expected}"


def test_policies_follow_the_price_or_else_the_carbon() -> None:
    assert EnergySignals(price="p", carbon="c").followed == "p"
    assert EnergySignals(price="p", carbon="c", follow="carbon").followed == "c"
    assert EnergySignals(carbon="c").followed == "c"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('power_limit = "l.csv"\npower_limit_kw = 5', "expected power_limit or power_limit_kw, got both"),
        ("power_limit_kw = 0", "energy.power_limit_kw: expected kW above 0, got 0"),
        ("power_limit_kw = nan", "energy.power_limit_kw: expected kW above 0, got nan"),
        (
            'power_limit = "l.csv"\npower_limit_known_ahead_h = 25',
            "energy.power_limit_known_ahead_h: expected hours from 0 to 24, got 25",
        ),
        (
            'power_limit = "l.csv"\npower_limit_known_ahead_h = nan',
            "energy.power_limit_known_ahead_h: expected hours from 0 to 24, got nan",
        ),
        (
            "power_limit_kw = 5\npower_limit_known_ahead_h = 2",
            "energy.power_limit_known_ahead_h: expected power_limit, a CSV file, got none",
        ),
        (
            'price = "p.csv"\npower_limit_kind = "soft"',
            "energy.power_limit_kind: expected a power limit, got none",
        ),
        ("pue = 1.1", "expected price or carbon, a CSV file, or a power limit; got none"),
    ],
)
def test_wrong_power_limit_is_one_clear_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(f'name = "c"\n\n[[nodes]]\ngpus = 4\n\n[energy]\n{text}\n')
    with pytest.raises(ClusterSpecError) as caught:
        ClusterSpec.read(tmp_path / "c.toml")
    assert str(caught.value).endswith(message)


def test_unknown_kind_of_power_limit_is_refused(tmp_path: Path) -> None:
    text = '[energy]\npower_limit_kw = 5\npower_limit_kind = "firm"\n'
    (tmp_path / "c.toml").write_text(f'name = "c"\n\n[[nodes]]\ngpus = 4\n\n{text}')
    with pytest.raises(
        ClusterSpecError, match=r"Invalid enum value 'firm' - at `\$\.energy\.power_limit_kind`"
    ):
        ClusterSpec.read(tmp_path / "c.toml")


def test_power_limit_is_written_and_read_again(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('name = "c"\n\n[[nodes]]\ngpus = 4\n\n[energy]\npower_limit = "l.csv"\n')
    spec = ClusterSpec.read(tmp_path / "c.toml")
    assert spec.energy == EnergySignals(power_limit=str(tmp_path / "l.csv"))
    (tmp_path / "d.toml").write_text(spec.to_toml())
    assert ClusterSpec.read(tmp_path / "d.toml") == spec
