"""One workload in a separate process: warms up, waits for the others, trains in timed windows.

    python -m studies.gpu.child --workload cnn_small --batch 8 --device cpu --small

Speaks `studies.gpu.protocol` on its standard output; all other output goes to standard
error. Type `go` and, some windows later, `stop`; the end of its input is a `stop` too, so that no child
outlives its parent.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

import msgspec

from rlsched.errors import RlschedError
from studies.gpu.protocol import GO, STOP, Ended, Failed, Job, Warm, Window, encode

if TYPE_CHECKING:
    from torch import Tensor

    from studies.gpu.training import Trainer

WARMUP_STEPS = 5


class Orders:
    """Words of the parent, read by a thread."""

    def __init__(self, stream: TextIO) -> None:
        self.go = threading.Event()
        self.stop = threading.Event()
        self._stream = stream
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._stream:
            if line.strip() == GO:
                self.go.set()
            elif line.strip() == STOP:
                break
        self.stop.set()
        self.go.set()


def main() -> int:
    """Run one child."""
    arguments = parse()
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1, encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(message: msgspec.Struct) -> None:
        print(encode(message), file=lines, flush=True)

    if arguments.cpu_cores:
        os.sched_setaffinity(0, set(arguments.cpu_cores))
    try:
        run(arguments, say)
    except BrokenPipeError:
        return 1
    except Exception as error:  # the parent reports it; a traceback would not help its user
        detail = str(error).splitlines()[0] if str(error) else ""
        is_ours = isinstance(error, RlschedError)
        say(Failed(reason=detail if is_ours else f"{type(error).__name__}: {detail}"))
        return 1
    return 0


def run(arguments: argparse.Namespace, say: Callable[[msgspec.Struct], None]) -> None:
    """Build, warm up, wait for the others, train until `stop`."""
    import torch  # after the cores are set: its thread pools count them

    from studies.gpu.building import build

    is_cuda = arguments.device == "cuda"
    if is_cuda:
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")
    else:
        torch.set_num_threads(1)
    trainer = build(
        Job(arguments.workload, arguments.batch),
        arguments.device,
        is_small=arguments.small,
        cores=arguments.cpu_cores if arguments.feed else None,
    )
    orders = Orders(sys.stdin)  # not earlier: workers that are forked while it reads would hang on its lock
    wait = torch.cuda.synchronize if is_cuda else _nothing
    first_loss, steps, step_s = warm_up(trainer, arguments.warmup_s, wait)
    say(
        Warm(
            pid=os.getpid(),
            samples_per_step=trainer.samples_per_step,
            step_s=step_s,
            precision=trainer.precision,
        )
    )
    orders.go.wait()
    last_loss = first_loss
    while not orders.stop.is_set():
        start_s, done = time.monotonic(), 0
        while done == 0 or time.monotonic() - start_s < arguments.window_s:
            last_loss = trainer.step()
            done += 1
        wait()
        say(Window(start_s=start_s, end_s=time.monotonic(), steps=done))
        steps += done
    say(
        Ended(
            steps=steps,
            reserved_mib=torch.cuda.max_memory_reserved() / 2**20 if is_cuda else None,
            first_loss=float(first_loss),
            last_loss=float(last_loss),
        )
    )


def warm_up(trainer: Trainer, seconds: float, wait: Callable[[], None]) -> tuple[Tensor, int, float]:
    """Train `seconds`, and `WARMUP_STEPS` steps at least.

    Returns:
        The first loss, the steps, and the mean seconds of a step after the first (which compiles and tunes).
    """
    first_loss = trainer.step()
    wait()
    start_s, steps = time.monotonic(), 0
    while steps < WARMUP_STEPS or time.monotonic() - start_s < seconds:
        trainer.step()
        wait()
        steps += 1
    return first_loss, steps + 1, (time.monotonic() - start_s) / steps


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="the network of a rehearsal")
    parser.add_argument("--cpu-cores", type=int, nargs="+", metavar="N", help="pin this process to them")
    parser.add_argument(
        "--feed", action="store_true", help="an input pipeline on --cpu-cores, a worker a core"
    )
    parser.add_argument("--warmup-s", type=float, default=1.0)
    parser.add_argument("--window-s", type=float, default=1.0)
    arguments = parser.parse_args()
    if arguments.feed and not arguments.cpu_cores:
        parser.error("--feed needs --cpu-cores")
    return arguments


def _nothing() -> None:
    """Do nothing: on a CPU, a step has finished when its call returns."""


if __name__ == "__main__":
    status = main()
    for worker in multiprocessing.active_children():  # of an input pipeline
        worker.kill()
    sys.stderr.flush()
    os._exit(status)  # without waiting for the reading threads
