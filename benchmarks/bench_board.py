"""Speed of writing, opening and drawing the store of decisions.

    .venv/bin/python -m benchmarks.bench_board                         # 100,000 decisions on 512 GPUs
    .venv/bin/python -m benchmarks.bench_board --a-write 1             # each decision in a write of its own
    .venv/bin/python -m benchmarks.bench_board --decisions 10000000    # opened by its last part; 2 GB

Generated decisions with eight plans each, while fifty jobs wait, and as many attempts, in a temporary folder.
Of more than 200,000, the decisions after the first 100,000 are copies of these with other numbers, times and
jobs. (The records in the copies are not changed; only `story` and `moment` read some.)

CPU seconds. `written` is the cost of the store for the broker or the simulator. A new process opens the
store: `parts` finds its parts, `opened` reads the last part, as the tab does first. `overview` is the tab's
first request, as JSON; `story` is one job, `moment` the queue at a time. `again` is a reader that
refreshes and finds one new decision. If there are several parts (a store of more than `PART_ROWS` or
`PART_BYTES`), `earlier` opens and plots the middle one. `peak_mib` is the memory of the process that reads,
at its end.

Another new process answers the requests of the tab, as TensorBoard does: `runs` lists the stores and parts,
and opens the last part; `chart` is the compressed overview; `earlier_chart` opens an earlier part and answers
with its overview, and `runs_again` lists the stores once more. `tab_peak_mib` is its memory.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import multiprocessing
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rlsched.board import views
from rlsched.decide.actions import Start
from rlsched.decide.record import QUEUED, DecisionRecord, Names, PlanSeen
from rlsched.decisions import story
from rlsched.decisions.reading import StoreReader, parts
from rlsched.decisions.schema import JobEvent, NodeChange, StoreInfo
from rlsched.decisions.segments import SUFFIX, segment_files
from rlsched.decisions.store import HELD_ROWS, DecisionStore

GPUS, A_NODE, GANG, RUN_S = 512, 8, 4, 900.0
BATCH = 64
MOST_BYTES = 6_000
"""Upper bound for the size of a decision with its events that is written by itself, bytes."""
MOST_BYTES_TOGETHER = 250
"""The same for decisions that are written in large batches."""
ORIGINALS = 100_000
PERIOD_S = ORIGINALS * 7.0
SHIFTED = ("number", "job", "turn")


def record(number: int) -> DecisionRecord:
    """Return the record of a decision to start a job: eight plans, while fifty jobs wait."""
    waiting = range(number, number + QUEUED)
    plans = [
        PlanSeen(how="share", share_with=number + k, node=f"n{k}", speed_frac=0.9, worth=k / 8, run_s=RUN_S)
        for k in range(8)
    ]
    return DecisionRecord(
        source="rule",
        policy_id="tuned",
        state_digest=f"{number:032x}",
        number=number,
        now_s=number * 7.0,
        partition="shared",
        action=Start(seq=number, gpus=tuple(range(GANG))),
        took_us=200.0,
        turn=number,
        plans=plans,
        prices={"gpu_time": 1.0, "gpu_types": 0.3, "energy": 0.0},
        queue=b"".join(seq.to_bytes(4, "little") for seq in waiting),
        names=Names(jobs={number + k: str(number + k) for k in range(9)}, queue="\n".join(map(str, waiting))),
    )


def events(number: int) -> Iterator[JobEvent]:
    """Yield the events of a job: submission, start and end."""
    first = number * GANG % GPUS
    at_s, job, name = number * 7.0, str(number), f"train-{number % 500}"
    nodes = [f"n{gpu // A_NODE}" for gpu in range(first, first + GANG)]
    gpus = [gpu % A_NODE for gpu in range(first, first + GANG)]
    about = {"job": job, "name": name, "user": f"u{number % 90}", "num_gpus": float(GANG)}
    yield JobEvent(time_s=at_s - 60.0, kind="submit", predicted_s=RUN_S, **about)  # type: ignore[arg-type]
    yield JobEvent(time_s=at_s, kind="start", attempt=1, nodes=nodes, gpus=gpus, **about)  # type: ignore[arg-type]
    yield JobEvent(time_s=at_s + RUN_S, kind="end", state="completed", run_s=RUN_S, energy_j=1e6, **about)  # type: ignore[arg-type]


@contextmanager
def timed(what: str, found: dict[str, float]) -> Iterator[None]:
    """Context manager: records the CPU seconds of a block."""
    began_s = time.process_time()
    yield
    found[what] = time.process_time() - began_s


def write(folder: Path, decisions: int, a_write: int) -> float:
    """Write a store with this many decisions. Return the CPU time of the store's own methods, seconds."""
    store = DecisionStore(folder, StoreInfo(time="trace", of="bench"), keep_bytes=1 << 50)
    store.add_events([NodeChange(time_s=0.0, node=f"n{k}", num_gpus=A_NODE) for k in range(GPUS // A_NODE)])
    spent_s = 0.0
    for first in range(0, decisions, min(BATCH, a_write)):
        numbers = range(first, min(first + min(BATCH, a_write), decisions))
        records, happened = [record(k) for k in numbers], [one for k in numbers for one in events(k)]
        began_s = time.process_time()
        store.add_decisions(records)
        store.add_events(happened)
        if numbers.stop % a_write == 0 or numbers.stop == decisions:
            store.flush()
        spent_s += time.process_time() - began_s
    return spent_s


def copy(folder: Path, copies: int) -> None:
    """Append copies of all decisions and events of a store, each for the period after the one before."""
    originals = {table: segment_files(folder, table) for table in ("decisions", "jobs")}
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    for number in range(1, copies + 1):
        for table, segments in originals.items():
            for at, path in enumerate(segments, number * len(segments) + 1):
                with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
                    target = folder / f"{table}-{at:06d}{SUFFIX}"
                    with pa.ipc.new_stream(target, stream.schema, options=options) as out:
                        for batch in stream:
                            out.write_batch(shifted(batch, number))


def shifted(batch: Any, periods: int) -> Any:
    """Return a batch of a store with numbers, times and jobs that are `periods` periods later."""
    found = {name: batch.column(name) for name in batch.schema.names}
    found["time_s"] = pc.add(found["time_s"], periods * PERIOD_S)
    for name in SHIFTED:
        if name in found:
            number = pc.add(found[name].cast(pa.int64()), periods * ORIGINALS)
            found[name] = number.cast(batch.schema.field(name).type)
    return pa.record_batch(found, schema=batch.schema)


def read(folder: Path, decisions: int) -> dict[str, float]:
    """Open a store as the tab does, and return the CPU seconds of each step, and the peak memory."""
    found: dict[str, float] = {}
    with timed("parts", found):
        all_parts = parts(folder)
    with timed("opened", found):
        reader = StoreReader(folder, all_parts[-1])
        reader.refresh()
    with timed("overview", found):
        text = json.dumps(views.overview(reader, reader.timeline.first_s, reader.timeline.last_s))
    with timed("story", found):
        story.job_story(reader, story.job_of(reader, str(decisions - min(decisions // 2, 5_000))))
    with timed("moment", found):
        story.moment(reader, (reader.timeline.first_s + reader.timeline.last_s) / 2)
    store = DecisionStore(folder, StoreInfo(time="trace", of="bench"), keep_bytes=1 << 50)
    store.add_decisions([record(decisions)])
    store.flush()
    with timed("again", found):
        assert reader.refresh()
    del reader
    if len(all_parts) > 1:
        with timed("earlier", found):
            middle = StoreReader(folder, all_parts[len(all_parts) // 2])
            middle.refresh()
            json.dumps(views.overview(middle, middle.timeline.first_s, middle.timeline.last_s))
    return {
        "parts": len(all_parts),
        **{f"{what}_s": value for what, value in found.items()},
        "overview_mib": len(text) / 2**20,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def answer(folder: Path) -> dict[str, float]:
    """Answer requests of the tab, and return the CPU seconds of each, and the peak memory."""
    from tensorboard.plugins import base_plugin
    from werkzeug.test import Client

    from rlsched.board.plugin import UNTIL, DecisionsPlugin

    found: dict[str, float] = {}
    apps = DecisionsPlugin(base_plugin.TBContext(logdir=str(folder))).get_plugin_apps()

    def get(path: str, **query: str) -> Any:
        answered = Client(apps[path]).get(path, query_string=query, headers={"Accept-Encoding": "gzip"})
        assert answered.status_code == 200, answered.data
        return json.loads(gzip.decompress(answered.data)) if path == "/runs" else None

    with timed("runs", found):
        runs = get("/runs")
    with timed("chart", found):
        get("/overview", run=runs[0]["run"])
    earlier = [one["run"] for one in runs if UNTIL in one["run"]]
    if earlier:
        with timed("earlier_chart", found):
            get("/overview", run=earlier[len(earlier) // 2])
        with timed("runs_again", found):
            get("/runs")
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {f"{what}_s": value for what, value in found.items()} | {"tab_peak_mib": peak_mib}


def main(say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description="The store of decisions: written, opened, drawn.")
    parser.add_argument("--decisions", type=int, default=100_000)
    parser.add_argument("--a-write", type=int, default=HELD_ROWS, help="decisions that are written at once")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copies = max(0, math.ceil(asked.decisions / ORIGINALS) - 1) if asked.decisions > 2 * ORIGINALS else 0
        decisions = ORIGINALS * (1 + copies) if copies else asked.decisions
        free = shutil.disk_usage(folder).free
        needed = decisions * (MOST_BYTES if asked.a_write < BATCH else MOST_BYTES_TOGETHER)
        if free < needed:
            raise SystemExit(
                f"{name}: expected {needed >> 20:,} MiB of free disk space, got {free >> 20:,} MiB"
            )
        first = min(decisions, ORIGINALS) if copies else decisions
        written_s = write(folder, first, asked.a_write)
        copy(folder, copies)
        size = sum(file.stat().st_size for file in folder.iterdir())
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
            found = fresh.submit(answer, folder).result()
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
            found |= fresh.submit(read, folder, decisions).result()
    report = {
        "decisions": decisions,
        "written_per_s": first / written_s,
        "bytes_per_decision": size / decisions,
        **found,
    }
    if asked.json:
        say(json.dumps(report))
        return
    for name, value in report.items():
        say(f"{name:20} {value:12,.4g}")


if __name__ == "__main__":
    main()
