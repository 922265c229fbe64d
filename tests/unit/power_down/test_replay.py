"""Replays: cases by hand, the service against the replay by slots, and the published series."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlsched.errors import TraceError
from rlsched.models.node_power import PowerByState
from rlsched.power_down.helios import HeliosRule
from rlsched.power_down.minutes import replay_states
from rlsched.power_down.replay import replay_slots
from rlsched.power_down.series import NodeDemand
from rlsched.power_down.service import KeepRule, PowerDownService
from rlsched.workload.predict.node_demand import DAY_SLOTS, Boosted, Persistence, TrailingMaximum

NOTHING = KeepRule(buffer_nodes=0, wake_buffer_nodes=0, ramp_nodes=0, falling_slots=0)


def minutes(busy: list[int], total: int = 10) -> NodeDemand:
    """A row a minute from second 0."""
    time_s = 60.0 * np.arange(len(busy))
    return NodeDemand(time_s, np.array(busy, float), np.full(len(busy), float(total)), False)


def test_slots_by_hand() -> None:
    """Demand 4, 4, 2, 6, 6 of 10 nodes, from slot 1 on; the buffer is 1, 2 after a wake-up."""
    demand, total = np.array([4.0, 4, 2, 6, 6]), np.full(5, 10.0)
    rule = KeepRule(buffer_nodes=1, wake_buffer_nodes=2, ramp_nodes=0, falling_slots=0)
    (one,) = replay_slots(demand, total, demand, [rule], 1, 5)
    # Awake: 5 (4 + 1), 5, then 3 at the start of slot 3: three are missing, 8 in the end; 7.
    assert one.utilisation_frac == pytest.approx(np.mean([4 / 5, 2 / 5, 6 / 8, 6 / 7]))
    assert one.nodes_asleep == pytest.approx(np.mean([5, 5, 2, 3]))
    assert (one.wake_up_events, one.nodes_booted, one.slots_short, one.node_slots_short) == (1, 5, 1, 3)
    assert one.wake_ups_a_day == DAY_SLOTS / 4


def test_many_rules_at_once_give_what_each_gives_alone() -> None:
    rng = np.random.default_rng(1)
    demand = np.clip(200 + np.cumsum(rng.integers(-6, 7, 600)), 0, 300).astype(float)
    total, peaks = np.full(600, 300.0), TrailingMaximum(6).peaks(demand)
    rules = [
        KeepRule(buffer_nodes=buffer, wake_buffer_nodes=2 * buffer, ramp_nodes=ramp, falling_slots=fall)
        for buffer in (0, 5, 20)
        for ramp in (0, 2)
        for fall in (0, 3)
    ]
    together = replay_slots(demand, total, peaks, rules, 10, 600)
    assert together == [replay_slots(demand, total, peaks, [rule], 10, 600)[0] for rule in rules]
    assert len({one.nodes_asleep for one in together}) > 6


def test_the_service_keeps_as_many_as_the_replay_by_slots_when_nodes_take_no_time() -> None:
    """Demand that is steady within slots, nodes that boot at once: both count alike."""
    rng = np.random.default_rng(5)
    slots = np.clip(20 + np.cumsum(rng.integers(-3, 4, 200)), 1, 40)
    series = minutes(np.repeat(slots, 10).tolist(), 40)
    rule = KeepRule(buffer_nodes=2, wake_buffer_nodes=4, ramp_nodes=0, falling_slots=3)
    demand, total, _ = series.slots()
    peaks = TrailingMaximum(4).peaks(demand)
    instant = PowerByState(idle_w=600, asleep_w=0, boot_w=600, boot_s=0, shutdown_s=0)
    outcome = replay_states(series, PowerDownService(rule, TrailingMaximum(4)), instant, 24000.0, 60.0)
    (by_slots,) = replay_slots(demand, total, peaks, [rule], 40, 200)
    assert by_slots.wake_up_events > 5
    assert abs(outcome.wake_up_events - by_slots.wake_up_events) <= 1
    assert outcome.nodes_asleep == pytest.approx(by_slots.nodes_asleep, abs=0.5)


def test_a_rise_waits_for_the_boot_and_no_longer() -> None:
    """One busy of ten for two hours, then three; eight sleep and boot for five minutes."""
    series = minutes([1] * 120 + [4] * 60)
    rule = KeepRule(buffer_nodes=1, wake_buffer_nodes=2, ramp_nodes=0, falling_slots=0)
    power = PowerByState(idle_w=600, asleep_w=0, boot_w=600, boot_s=300, shutdown_s=0)
    outcome = replay_states(series, PowerDownService(rule, Persistence()), power, 0.0, 60.0)
    assert (outcome.wake_up_events, outcome.nodes_booted) == (1, 4)
    assert (outcome.slots_short, outcome.node_slots_short) == (1, 2)
    assert outcome.node_minutes_short == 5 * 2
    # Asleep: 8 from minute 10 to 120, then 4, of which one more after the first slot at 4: it keeps 5.
    assert outcome.nodes_asleep == pytest.approx((8 * 110 + 4 * 10 + 5 * 50) / 180)
    assert outcome.energy_kwh == pytest.approx(0.6 / 60 * (10 * 180 - 8 * 110 - 4 * 10 - 5 * 50))
    assert outcome.always_on_kwh == pytest.approx(0.6 * 3 * 10)


def test_figures_cover_the_rows_since() -> None:
    series = minutes([1] * 120 + [4] * 60)
    outcome = replay_states(
        series, PowerDownService(NOTHING, Persistence()), PowerByState.from_gpus(), 7200.0 + 600, 60.0
    )
    assert (outcome.wake_up_events, outcome.slots_short, outcome.node_minutes_short) == (0, 0, 0.0)
    assert outcome.days == pytest.approx(50 / 1440)


def test_helios_rule_by_hand() -> None:
    demand = np.array([50.0, 50, 50, 40, 45, 80, 80])
    total, flat = np.full(7, 100.0), np.zeros(7)
    one = HeliosRule(buffer_nodes=5).replay(demand, total, flat, flat, 3, 7, knows_slot=False)
    # Awake 55, 45 after the fall to 40 (demand 45 fits), 80 is 35 short: 85; quiet after that.
    assert one.utilisation_frac == pytest.approx(np.mean([40 / 55, 45 / 45, 80 / 85, 80 / 85]))
    assert (one.wake_up_events, one.nodes_booted, one.node_slots_short) == (1, 40, 35)
    seeing = HeliosRule(buffer_nodes=5).replay(demand, total, flat, flat, 3, 7, knows_slot=True)
    assert seeing.utilisation_frac == pytest.approx(np.mean([40 / 45, 45 / 45, 80 / 85, 80 / 85]))
    rising = HeliosRule(buffer_nodes=5).replay(demand, total, flat + 60, flat, 3, 7, knows_slot=False)
    assert rising.slots_short == 1
    assert rising.nodes_asleep < one.nodes_asleep


HEADER = "time,active,total\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected the columns time, busy .* got none"),
        ("time,nodes\n0,1\n", "got time, nodes"),
        (HEADER, "found none"),
        (HEADER + "0,1,4\n60,x,4\n", "line 3: expected a time, .* got 60,x,4"),
        (HEADER + "0,1\n", "line 2: expected a time"),
        (HEADER + "0,1,4\n0,1,4\n", "line 3: times must rise"),
        (HEADER + "0,-1,4\n", "line 2: nodes must be finite numbers >= 0"),
        (HEADER + "0,nan,4\n", "line 2: nodes must be finite"),
        (HEADER + "nan,1,4\n", "line 2: expected a time"),
    ],
)
def test_a_bad_series_is_one_clear_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "demand.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=words) as caught:
        NodeDemand.read(path)
    assert "\n" not in str(caught.value)


def test_a_damaged_archive_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "demand.csv.gz"
    path.write_bytes(b"\x1f\x8b\x08\x00broken")
    with pytest.raises(TraceError, match="cannot be read"):
        NodeDemand.read(path)


def test_slots_take_the_highest_and_bridge_gaps(tmp_path: Path) -> None:
    path = tmp_path / "demand.csv"
    path.write_text(
        "time,busy,total\n2017-10-03 00:00:00,3,9\n2017-10-03 00:09:00,5,9\n2017-10-03 00:35:00,1,8\n"
    )
    busy, total, first = NodeDemand.read(path).slots()
    assert busy.tolist() == [5, 5, 5, 1]
    assert total.tolist() == [9, 9, 9, 8]
    assert first == DAY_SLOTS  # a Tuesday


def test_headline_on_the_published_series(shared_data: Path) -> None:
    """The figures of docs/results.md: settings chosen before December, and Helios' own demand figures."""
    series = NodeDemand.read(shared_data / "facts" / "philly_node_sequence.csv.gz")
    demand, _, first_slot = series.slots()
    assert (len(demand), first_slot) == (10625, DAY_SLOTS)
    total, since, until = np.full(len(demand), 420.0), 59 * DAY_SLOTS, 73 * DAY_SLOTS
    peaks = TrailingMaximum(18).peaks(demand)
    always = KeepRule(buffer_nodes=420, wake_buffer_nodes=420)
    chosen, awake = replay_slots(demand, total, peaks, [KeepRule(), always], since, until)
    assert demand[since:until].mean() / 420 == pytest.approx(0.690, abs=5e-4)  # published: 69.0 %
    assert awake.wake_up_events == 0
    assert chosen.utilisation_frac == pytest.approx(0.9055, abs=5e-5)
    assert chosen.nodes_asleep == pytest.approx(100.29, abs=0.01)
    assert (chosen.wake_up_events, chosen.slots_short, chosen.node_slots_short) == (8, 8, 56)
    assert chosen.nodes_booted == 376


@pytest.mark.slow
def test_boosting_on_the_published_series(shared_data: Path) -> None:
    """Its setting chosen before December; trees differ a little from one machine to the next, so bounds."""
    series = NodeDemand.read(shared_data / "facts" / "philly_node_sequence.csv.gz")
    demand, _, first_slot = series.slots()
    since, until = 59 * DAY_SLOTS, 73 * DAY_SLOTS
    peaks = Boosted(18, 0.8, first_slot=first_slot).peaks(demand[:until])
    rule = KeepRule(buffer_nodes=20, wake_buffer_nodes=30, ramp_nodes=1, falling_slots=12)
    (outcome,) = replay_slots(demand, np.full(len(demand), 420.0), peaks, [rule], since, until)
    assert 0.900 < outcome.utilisation_frac < 0.912
    assert outcome.wake_up_events <= 8
    assert outcome.slots_short <= 8
