"""`rlsched up`: a second one in a directory starts nothing, and nodes that exit are restarted."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import pytest

from rlsched.broker.base.abilities import NOT_LIVE, not_live
from rlsched.client import local, restarts
from rlsched.client.local import LocalCluster
from rlsched.client.restarts import CALM_S, MOST, Restarts
from rlsched.errors import InputError, RlschedError
from rlsched.files.lock import lock_file, take_lock


def cluster(directory: Path) -> LocalCluster:
    return LocalCluster(
        directory=directory, keys=directory / "keys", address="tcp://127.0.0.1:*", nodes=1, gpus=1
    )


def test_second_one_starts_nothing_and_keeps_the_address_file(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "address").write_text("tcp://127.0.0.1:7461\n")
    said: list[str] = []
    with lock_file(tmp_path / "up") as first:
        assert take_lock(first)
        with pytest.raises(InputError, match=rf"another `rlsched up` runs in .*\(process {os.getpid()}\)"):
            cluster(tmp_path).run(said.append)
    assert (tmp_path / "broker" / "address").read_text() == "tcp://127.0.0.1:7461\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broker", "up.lock"]
    assert not said


def test_directory_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "up").write_text("")
    with pytest.raises(InputError, match="cannot write here"):
        cluster(tmp_path / "up").run(print)


def test_settings_without_effect_online_are_one_line_and_documented() -> None:
    plain, full = not_live(shares=False, speed_energy=0.0), not_live(shares=True, speed_energy=0.3)
    assert plain.startswith(f"{full}; off here: sharing GPUs")
    assert "(--share)" in plain
    assert "(--speed-energy)" in plain
    assert "\n" not in plain
    assert "MPS" not in plain, "no decision of the simulator expects faults"
    root = Path(__file__).resolve().parent.parent.parent.parent
    for page in ("README.md", "docs/how-to/operate.md"):
        text = " ".join((root / page).read_text(encoding="utf-8").split())
        assert [one for one in NOT_LIVE if one not in text] == [], page


def test_back_off_doubles_up_to_a_maximum_and_is_reset_after_stable_time() -> None:
    mine = Restarts()
    assert [mine.delay_s(0.5) for _ in range(MOST + 2)] == [1.0, 2.0, 4.0, 8.0, 16.0, math.inf, math.inf]
    assert mine.delay_s(CALM_S) == 1.0
    assert mine.in_a_row == 1


DAEMON = """
import sys, time
verb, name = sys.argv[1:]
print(f"{name} could not do it" if name == "n0" else "well", flush=True)
if name == "n0":
    sys.exit(3)
time.sleep(600)
"""


def test_node_that_exits_is_restarted_and_the_others_keep_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_RLSCHED", (sys.executable, "-c", DAEMON))
    monkeypatch.setattr(restarts, "FIRST_S", 0.0)
    one, said = cluster(tmp_path), list[str]()
    try:
        for verb, name in (("broker", local.BROKER), ("node", "n0"), ("node", "n1")):
            one._spawn(name, verb, name)
        broker, _, n1 = [child.process for child in one._children]
        while not any("stays down" in line for line in said):
            one._supervise(said.append)
        assert said[0].startswith("n0 ended with exit code 3; its log ")
        assert "ends with: n0 could not do it; it is started again in 0 s, and the others continue" in said[0]
        again = [line for line in said if line.startswith("n0 is started again, ")]
        assert again == [f"n0 is started again, {k} of {MOST} in a row" for k in range(1, MOST + 1)]
        assert len(said) == 2 * MOST + 1
        one._supervise(said.append)
        assert (n1.poll(), broker.poll(), len(said)) == (None, None, 2 * MOST + 1)
        monkeypatch.setattr(restarts, "MOST", 0)
        n1.kill()
        n1.wait()
        with pytest.raises(RlschedError, match=r"n1 was killed by signal 9; its log .* ends with: well"):
            one._supervise(said.append)
        broker.kill()
        broker.wait()
        with pytest.raises(RlschedError, match="broker was killed by signal 9"):
            one._supervise(said.append)
    finally:
        one._take_down()
