"""The weight of energy and the limits of the store, from the command line or environment to the broker."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlsched.broker.server import running, serve
from rlsched.broker.server.serve import Broker
from rlsched.broker.server.settings import BrokerSettings
from rlsched.cli.main import run
from rlsched.client import local
from rlsched.errors import InputError


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[BrokerSettings]:
    """Settings of the brokers that the command would start; none is started."""
    monkeypatch.setenv("RLSCHED_HOME", str(tmp_path))
    monkeypatch.delenv("RLSCHED_SPEED_ENERGY", raising=False)
    asked: list[BrokerSettings] = []

    def keep(settings: BrokerSettings, **_: object) -> None:
        asked.append(settings)

    monkeypatch.setattr(running, "run_broker", keep)
    return asked


def test_default_weighs_speed_only(brokers: list[BrokerSettings]) -> None:
    assert run(["broker"]) == 0
    assert [one.speed_energy for one in brokers] == [0.0]


def test_option_overrides_the_environment(
    brokers: list[BrokerSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLSCHED_SPEED_ENERGY", "0.25")
    assert run(["broker"]) == 0
    assert run(["broker", "--speed-energy", "1"]) == 0
    assert [one.speed_energy for one in brokers] == [0.25, 1.0]


def test_up_passes_it_to_the_broker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options: list[str] = []

    class Cluster:
        def __init__(self, *, broker_options: list[str], **_: Any) -> None:
            options.extend(broker_options)

        def run(self, _: object, **__: object) -> int:
            return 0

    monkeypatch.setattr(local, "LocalCluster", Cluster)
    monkeypatch.setenv("RLSCHED_SPEED_ENERGY", "0.5")
    assert run(["up", "--keys", str(tmp_path)]) == 0
    words = dict(zip(options[::2], options[1::2], strict=True))
    assert words["--speed-energy"] == "0.5"


@pytest.mark.parametrize(
    ("words", "environment", "why"),
    [
        (["broker", "--speed-energy", "1.1"], "", "expected a number from 0 to 1, got 1.1"),
        (["up"], "fast", "--speed-energy: expected a number from 0 to 1, got 'fast'"),
        (["submit", "--speed-energy", "-1", "--", "true"], "", "expected a number from 0 to 1, got -1.0"),
    ],
)
def test_invalid_value_is_one_line(
    words: list[str],
    environment: str,
    why: str,
    brokers: list[BrokerSettings],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if environment:
        monkeypatch.setenv("RLSCHED_SPEED_ENERGY", environment)
    assert run(words) == 2
    told = capfd.readouterr().err
    assert why in told
    assert len(told.splitlines()) == 1
    assert brokers == []


def test_broker_refuses_a_value_that_is_not_a_number(tmp_path: Path) -> None:
    settings = BrokerSettings(address="tcp://127.0.0.1:0", directory=tmp_path, keys=tmp_path)
    with pytest.raises(InputError, match="--speed-energy nan: expected 0"):
        Broker(msgspec.structs.replace(settings, speed_energy=float("nan")))


def test_limits_of_the_store_of_decisions_reach_the_store(
    brokers: list[BrokerSettings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class MadeError(Exception):
        pass

    def log(*arguments: object) -> None:
        raise MadeError(arguments[-2:])

    assert run(["broker"]) == 0
    assert run(["broker", "--keep-decisions-mib", "100", "--keep-decisions-days", "30"]) == 0
    assert run(["broker", "--keep-decisions-days", "all"]) == 0
    limits = [(one.keep_decisions_mib, one.keep_decisions_days) for one in brokers]
    assert limits == [(2048, math.inf), (100, 30.0), (2048, math.inf)]
    monkeypatch.setattr(serve, "RecordLog", log)
    settings = BrokerSettings(
        address="tcp://127.0.0.1:0",
        directory=tmp_path / "broker",
        keys=tmp_path,
        keep_decisions_mib=100,
        keep_decisions_days=30.0,
    )
    with pytest.raises(MadeError, match=rf"\({100 << 20}, 30.0\)"):
        Broker(settings)


@pytest.mark.parametrize("value", ["0", "0.5", "-3", "nan", "inf", "a week", ""])
def test_invalid_limit_of_the_store_is_one_line(
    value: str, brokers: list[BrokerSettings], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["broker", "--keep-decisions-mib", "0"]) == 2
    capfd.readouterr()
    assert run(["broker", "--keep-decisions-days", value]) == 2
    told = capfd.readouterr().err
    assert f"--keep-decisions-days: expected 1 day or more, or all, got {value!r}" in told
    assert len(told.splitlines()) == 1
    assert brokers == []
