"""Cost of a node's meter: CPU time of its thread, and bytes that it sends.

    .venv/bin/python -m benchmarks.bench_meter                      # 8 GPUs, 16 ranks of 9 processes
    .venv/bin/python -m benchmarks.bench_meter --idle-processes 500 --json

Real pynvml over the fake C library of the tests (`gcc` is needed), so it includes all of Python's cost and
none of a driver's. Each rank is a process with children, as a shim with a training process and its loaders.
`percent`: CPU time of the thread at one sample a second, of one core; `--idle-processes` adds other processes
to the machine, which are scanned every 5 s. `bytes_job_minute`: bytes sent per minute for a job whose figures
change all the time, before encryption; for an unchanged job it is a sixth.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from rlsched.wire.messages import AttemptKey, encode
from rlsched_node.gpu.nvml import NvmlGpus
from rlsched_node.usage.books import WINDOW_S, Place
from rlsched_node.usage.meter import FIND_EVERY_S, Meter

ROOT = Path(__file__).parents[1]
TARGETS = {"percent": "< 1", "bytes_job_minute": "< 1000"}
SHIM = """
import subprocess, sys
loaders = [subprocess.Popen(["sleep", "600"]) for _ in range(int(sys.argv[1]))]
print("up", flush=True)
sys.stdin.read()
for one in loaders: one.kill()
"""


@contextlib.contextmanager
def _ranks(count: int, children: int) -> Iterator[list[int]]:
    """Start processes with children, and yield the process IDs of the parents."""
    command = [sys.executable, "-S", "-c", SHIM, str(children)]
    running = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for one in running:
            assert one.stdout is not None
            one.stdout.readline()
        yield [one.pid for one in running]
    finally:
        for one in running:
            one.communicate()


def _library(gpus: int, directory: str) -> Path:
    library = Path(directory) / "libnvidia-ml.so.1"
    source = ROOT / "tests" / "support" / "fake_nvml.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", f"-DGPUS={gpus}", "-o", library, source], check=True)
    return library


def measure(gpus: int, ranks: int, children: int, idle: int, looks: int) -> dict[str, float]:
    """Sample this many times without pause, with a clock that advances a second per sample."""
    import ctypes

    import pynvml

    now_s = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now_s[0])
    with tempfile.TemporaryDirectory() as directory, patch("rlsched_node.gpu.nvml.time", clock):
        library = pynvml.nvmlLib = ctypes.CDLL(str(_library(gpus, directory)))
        pynvml._LoadNvmlLibrary = lambda: None
        opened = NvmlGpus()
        assert opened.capabilities(0).gpm
        meter = Meter(opened, "h100", clock=lambda: now_s[0])
        with _ranks(ranks, children) as pids, _ranks(idle // 10, 9):
            for number, pid in enumerate(pids):
                meter.begin(AttemptKey(number, 1, 0, "bench"), Place((number % gpus,), pid))
            now_s[0] += 1.0
            library.fake_pass_time(1)
            meter.read_all()
            took_s, sent, told = [], 0, 0
            for _ in range(looks):
                now_s[0] += 1.0
                library.fake_pass_time(1)
                began_s = time.thread_time()
                meter.read_all()
                took_s.append(time.thread_time() - began_s)
                news = meter.news()
                if news is not None:
                    sent += len(encode(news))
                    told += len(news.ranks)
        full = _full_frame(ranks)
        opened.close()
    found = looks / FIND_EVERY_S
    return {
        "looks": looks,
        "percent": 100.0 * sum(took_s) / looks,
        "median_look_ms": 1e3 * statistics.median(took_s),
        "longest_look_ms": 1e3 * max(took_s),
        "scans": found,
        "bytes_job_minute": 60.0 / WINDOW_S * full / ranks,
        "bytes_job_minute_idle": sent / ranks / (looks / 60.0),
        "told": told,
    }


def _full_frame(ranks: int) -> int:
    """Bytes of a message in which all ranks have changed, with figures as large as on a big node."""
    from rlsched.wire.messages import Metered, RankMetered, RankUsage

    draw = random.Random(0)
    usage = RankUsage(
        **{name: draw.randrange(500, 1000) for name in RankUsage.__struct_fields__ if name.endswith("milli")},
        measured_s=10,
        energy_mj=7_000_000,
        gpu_memory_mib=141_000,
        sm_clock_mhz=1_980,
        temperature_c=71,
        pcie_mib_s=24_000,
        read_mib=9_000,
        memory_mib=1_900_000,
    )
    each = [
        RankMetered(job=1_000_000 + rank, attempt=2, rank=3, usage=usage, energy_mj=10**12)
        for rank in range(ranks)
    ]
    return len(encode(Metered(ranks=each, power_w=5_621.5, day="2026-11-25", energy_day_j=3.1e8)))


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--children", type=int, default=8, help="of each rank, without its first process")
    parser.add_argument("--idle-processes", type=int, default=0, help="other processes on the machine")
    parser.add_argument("--looks", type=int, default=120)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = measure(asked.gpus, asked.ranks, asked.children, asked.idle_processes, asked.looks)
    if asked.json:
        print(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        print(f"{name:24} {value:10.2f}  {TARGETS.get(name, '')}")


if __name__ == "__main__":
    main()
