"""Every time at which two runs of the same jobs differ, in pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.plugins import base_plugin
from werkzeug.test import Client

import rlsched as rs
from rlsched.board.comparing import MOST_ACTS, MOST_PARTINGS, Partings, compare
from rlsched.board.plugin import DecisionsPlugin
from rlsched.decisions.reading import StoreReader
from rlsched.errors import InputError
from rlsched.workload.synth import synthesize
from rlsched_agents.whatif.instead import instead

RUNS = ("tuned", "fifo-backfill")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("partings")
    trace, spec = synthesize("helios", jobs=150, load=1.0, gpus=16, seed=2)
    rs.simulate(trace, spec, [*RUNS], models=rs.Models(), records=folder)
    return folder


@pytest.fixture(scope="module")
def readers(folder: Path) -> tuple[StoreReader, StoreReader]:
    found = StoreReader(folder / RUNS[0]), StoreReader(folder / RUNS[1])
    for reader in found:
        reader.refresh()
    return found


def pages(found: Partings) -> Iterator[dict[str, Any]]:
    for first in range(0, len(found), MOST_PARTINGS):
        page = found.page(first)
        assert (page["first"], page["count"]) == (first, len(found))
        yield from page["partings"]


def starts(reader: StoreReader) -> set[tuple[float, str]]:
    return {(one.start_s, one.job.job) for one in reader.timeline.attempts}


def test_pages_have_every_start_of_one_run_only(readers: tuple[StoreReader, StoreReader]) -> None:
    here, there = map(starts, readers)
    found = [*pages(Partings(*readers))]
    assert len(found) > MOST_PARTINGS
    assert [one["time_s"] for one in found] == sorted({at_s for at_s, _ in here ^ there})
    for one in found:
        for side, own in (("this", here - there), ("other", there - here)):
            jobs = {job for at_s, job in own if at_s == one["time_s"]}
            assert one[f"{side}_count"] == len(jobs)
            listed = {act["job"] for act in one[side]}
            assert listed == jobs if len(jobs) <= MOST_ACTS else listed < jobs
    assert len(Partings(readers[0], readers[0])) == 0


def test_starts_elsewhere_are_those_of_the_same_attempt(readers: tuple[StoreReader, StoreReader]) -> None:
    seen = 0
    for one in pages(Partings(*readers)):
        for side, reader in (("this", readers[1]), ("other", readers[0])):
            for act in one[side]:
                (attempt,) = reader.timeline.jobs[act["job"]].attempts
                assert act["elsewhere_s"] == attempt.start_s
                seen += 1
    assert seen > 100


def test_first_parting_is_the_first_difference_and_of_the_policies(
    readers: tuple[StoreReader, StoreReader],
) -> None:
    first, *later = pages(Partings(*readers))
    parting = compare(*readers)["parting"]
    assert first["time_s"] == min(parting[side]["time_s"] for side in ("this", "other"))
    assert first["same_state"]
    assert not all(one["same_state"] for one in later)  # most follow from earlier ones


def test_replay_with_the_choice_of_the_other_run_does_what_it_did(
    readers: tuple[StoreReader, StoreReader],
) -> None:
    reader, other = readers
    tried = 0
    for one in pages(Partings(*readers)):
        if one["worth"] is None or not one["same_state"]:
            continue
        found = instead(reader, one["worth"]["row"], str(one["worth"]["number"]), hours=24.0)
        assert not found["same"]
        tried += 1
        if tried == 3:
            break
    assert tried
    assert len(other)


def test_runs_of_other_jobs_are_not_compared(
    readers: tuple[StoreReader, StoreReader], tmp_path: Path
) -> None:
    """Their jobs have the same job IDs, and other submission times."""
    trace, spec = synthesize("helios", jobs=150, load=1.0, gpus=16, seed=3)
    rs.simulate(trace, spec, "fifo", records=tmp_path)
    other = StoreReader(tmp_path / "fifo")
    other.refresh()
    with pytest.raises(InputError, match="expected two runs of the same jobs: 1 of the 150 jobs"):
        compare(readers[0], other)
    assert compare(*readers)["jobs"] == 150


def test_page_asks_for_partings(folder: Path, readers: tuple[StoreReader, StoreReader]) -> None:
    client = Client(DecisionsPlugin(base_plugin.TBContext(logdir=str(folder))).get_plugin_apps()["/partings"])
    count = len(Partings(*readers))

    def ask(**query: Any) -> Any:
        answer = client.get("/partings", query_string={"run": RUNS[0], "other": RUNS[1], **query})
        return answer.status_code, json.loads(answer.data)

    code, last = ask(first=count - 1)
    assert (code, last["count"], len(last["partings"])) == (200, count, 1)
    assert ask(first=count)[1]["partings"] == []
    assert ask(first=0, other=RUNS[0])[1]["count"] == 0
    assert ask(first=-1) == (400, {"error": "first: expected a whole number, got '-1'"})
    assert ask(first=0, other="none")[0] == 400
