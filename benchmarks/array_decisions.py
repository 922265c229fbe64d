"""Cost of an array of 10,000 tasks: its submission, its row in `queue`, and decisions on other jobs.

    .venv/bin/python benchmarks/array_decisions.py             # 2 minutes

Two brokers with default options, each with a node of four simulated GPUs, on loopback. An array of 10,000
tasks waits at the first broker. At the second, as many single jobs wait as an array keeps in the queue at
once. Further jobs are submitted to both brokers in turn, and start at once. `decision`: decision times from
the records of each broker, in milliseconds. Because the brokers take turns, other load on the machine affects
both alike.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rlsched.broker.journal.records import STORE_FOLDER
from rlsched.broker.state.arrays import WINDOW
from rlsched.client.client import Client
from rlsched.decisions.reading import read_records

RLSCHED = (sys.executable, "-c", "from rlsched.cli.main import main; main()")
TASKS, ROUNDS = 10_000, 400


class Side:
    """A broker, a node and a client."""

    def __init__(self, folder: Path) -> None:
        self.folder, home = folder, folder / "home"
        self._log = (folder / "up.log").open("wb")
        words = ["--nodes", "1", "--gpus", "4", "--dir", str(folder / "up"), "--keys", str(home)]
        self._up = subprocess.Popen(
            [*RLSCHED, "up", "--address", "tcp://127.0.0.1:0", *words], stdout=self._log, stderr=self._log
        )
        until_s = time.monotonic() + 300.0
        while "ready" not in (folder / "up.log").read_text():
            if self._up.poll() is not None or time.monotonic() > until_s:
                raise SystemExit((folder / "up.log").read_text())
            time.sleep(0.1)
        address = (folder / "up" / "broker" / "address").read_text().strip()
        self.client = Client(address, home=home, timeout_s=60.0)
        self.client.submit(["sleep", "10000"], num_gpus=3)  # so jobs of two GPUs wait, and jobs of one run
        self.from_s = 0.0

    def probe(self) -> None:
        """Submit a job and wait until it has started and ended."""
        self.client.wait(self.client.submit(["true"]), patience_s=60.0)

    def close(self) -> list[float]:
        """Stop the cluster; returns its decision times since `from_s`, milliseconds."""
        self.client.close()
        self._up.send_signal(signal.SIGTERM)
        self._up.wait(60.0)
        self._log.close()
        store = self.folder / "up" / "broker" / STORE_FOLDER
        return sorted(one.took_us / 1e3 for one in read_records(store) if one.now_s >= self.from_s)


def at(ordered: list[float], share: float) -> float:
    """A quantile of sorted figures."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folders = [Path(made) / name for name in ("array", "single")]
        for folder in folders:
            folder.mkdir()
        array, single = map(Side, folders)
        began_s = time.perf_counter()
        array.client.submit(["true"], num_gpus=2, array=f"0-{TASKS - 1}")
        submitted_s = time.perf_counter() - began_s
        for _ in range(WINDOW):
            single.client.submit(["true"], num_gpus=2)
        time.sleep(1.0)
        began_s = time.perf_counter()
        rows = array.client.jobs()
        listed_s = time.perf_counter() - began_s
        found: dict[str, float] = {
            "submit_ms": submitted_s * 1e3,
            "list_ms": listed_s * 1e3,
            "rows": len(rows),
        }
        for side in (array, single):
            for _ in range(20):
                side.probe()
            side.from_s = time.time()
        for number in range(args.rounds):
            for side in (array, single) if number % 2 else (single, array):
                side.probe()
        for name, side in (("array", array), ("single", single)):
            took = side.close()
            found |= {
                f"{name}_decisions": len(took),
                f"{name}_p50_ms": at(took, 0.5),
                f"{name}_p99_ms": at(took, 0.99),
            }
    found["p50_ratio"] = found["array_p50_ms"] / found["single_p50_ms"]
    found["p99_ratio"] = found["array_p99_ms"] / found["single_p99_ms"]
    found["load"] = os.getloadavg()[0]
    if args.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:18} {value:10.3f}")


if __name__ == "__main__":
    main()
