"""Longest silence of each verb on its first use, with an empty kernel cache.

    .venv/bin/python benchmarks/first_minute.py                    # 15 minutes
    .venv/bin/python benchmarks/first_minute.py --only evaluate up

Each verb runs in its own terminal (a pty) with its own empty cache; the verbs for a cluster
call a broker that was also started with an empty cache. A word is output that differs from the output before
it, without control sequences, times and spinners: a turning bar that stays at 0 % is no word. `silence` is
the longest time without a word, from the start to the end, or until a server is ready. Exit code 1 if that is
more than two seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

SILENT_S: Final = 2.0
RLSCHED: Final = (sys.executable, "-m", "rlsched")
ADDRESS: Final = "tcp://127.0.0.1:17461"
_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|[\x00-\x08\x0b-\x1f]")
_MOVING: Final = re.compile(r"[\u2800-\u28ff]|\d+(?::\d\d)+(?:\.\d+)?|-:--:--")


class First(NamedTuple):
    """The first use of a verb.

    Attributes:
        words: The command line after `rlsched`.
        ready: Text that a server prints when it is ready; the server is then interrupted. "": the verb ends
            by itself.
    """

    words: str
    ready: str = ""


OFFLINE: Final = (
    First("trace describe {trace} --cluster {cluster}"),
    First("trace predict {trace} --cluster {cluster} -o {folder}/predicted.csv.gz"),
    First("models"),
    First("policies"),
    First("warm"),
    First("evaluate --trace {trace} --cluster {cluster} --policy fifo --policy tuned"),
    First("evaluate --trace {trace} --cluster {cluster} --policy ppo --policy easy --models"),
    First("evaluate --trace {trace} --cluster {cluster} --policy tuned --records {folder}/records"),
    First("explain 100 --run {folder}/records/tuned"),
    First("explain --decision 100 --instead 1 --run {folder}/records/tuned"),
    First("board {folder}/records --port 0", ready="http://"),
    First("whatif {history} --cluster {cluster}"),
    First("train --synthetic helios --recipe smoke --out {folder}/mine.toml"),
    First("broker --address tcp://127.0.0.1:0 --dir {folder}/broker --keys {folder}/keys", ready="ready"),
    First("doctor"),
)
ONLINE: Final = (
    First("run -- hostname"),
    First("submit --wait -- true"),
    First("submit --dry-run --gpus 2"),
    First("queue --all"),
    First("nodes"),
    First("top", ready="quit"),
    First("status"),
    First("why 1"),
    First("explain 1"),
    First("logs 1"),
    First("history"),
    First("account"),
    First("submit --hold -- true"),
    First("release 3"),
    First("cancel --name true"),
    First("quota list"),
    First("metrics --once"),
    First("node --name extra --gpus 2 --simulated --allow-root --dir {folder}/node", ready="registered"),
)
SLURM: Final = (
    First("engine slurm --partition gpu --print-lua --dir {folder}/gateway"),
    First("engine slurm --partition gpu --dir {folder}/gateway", ready="rlsched engine ready"),
    First("engine slurm --partition gpu --shadow --dir {folder}/shadow", ready="rlsched shadow ready"),
    First("shadow {folder}/shadow"),
)
"""Verbs that need a Slurm, which is started if its daemons are installed."""


class Said(NamedTuple):
    """The result of one use.

    Attributes:
        silence_s: The longest time without a word, seconds.
        before: The last word before that silence.
        took_s: Seconds from the start until the verb has ended, or the server is ready.
        cpu_s: CPU seconds of the verb and its child processes.
        code: Exit code of the verb.
    """

    silence_s: float
    before: str
    took_s: float
    cpu_s: float
    code: int | None


def typed(first: First, words: Sequence[str], env: dict[str, str], until_s: float = 600.0) -> Said:
    """Run a verb in a terminal, and time its output."""
    screen, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (50, 120))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began_s = word_s = time.monotonic()
    longest, said, last, text = 0.0, "its start", "", ""
    with subprocess.Popen(
        [*RLSCHED, *words], stdin=terminal, stdout=terminal, stderr=terminal, env=env, start_new_session=True
    ) as process:
        os.close(terminal)
        while True:
            readable, _, _ = select.select([screen], [], [], 0.05)
            now_s = time.monotonic()
            try:
                piece = os.read(screen, 1 << 16).decode(errors="replace") if readable else ""
            except OSError:  # the process has ended, and all was read
                break
            text += piece
            word = _MOVING.sub("", _CONTROL.sub(" ", piece)).strip()
            if word and word != last:
                if now_s - word_s > longest:
                    longest, said = now_s - word_s, last or "its start"
                word_s, last = now_s, word
            if now_s - began_s > until_s or (first.ready and first.ready in text):
                process.send_signal(signal.SIGINT)
                break
        took_s = time.monotonic() - began_s
        if time.monotonic() - word_s > longest:
            longest, said = time.monotonic() - word_s, last or "its start"
        while first.ready:  # drain its output until it ends
            try:
                if not os.read(screen, 1 << 16):
                    break
            except OSError:
                break
        code = process.wait(60.0)
    os.close(screen)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if code not in (0, 130):
        print(text[-2000:], file=sys.stderr)
    return Said(longest, said[-100:], took_s, cpu_s, code)


def environment(cache: Path, home: Path) -> dict[str, str]:
    """Return the environment of a user with this kernel cache and home."""
    made = {"XDG_CACHE_HOME": str(cache), "RLSCHED_HOME": str(home), "RLSCHED_BROKER": ADDRESS}
    return os.environ | made | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "50"}


def with_starts(trace: Path, cluster: Path, history: Path) -> None:
    """Write the trace as a site would record it: with the waiting time of each job."""
    code = (
        "import sys; from dataclasses import replace; import rlsched as rs; "
        "trace = rs.Trace.read(sys.argv[1]); "
        "waits = rs.simulate(trace, sys.argv[2], 'fifo-backfill')['fifo-backfill'].jobs.queue_s; "
        "replace(trace, extra={'queue_s': waits}).write(sys.argv[3])"
    )
    subprocess.run([sys.executable, "-c", code, str(trace), str(cluster), str(history)], check=True)


@contextmanager
def slurm_here(folder: Path, *, wanted: bool) -> Iterator[str]:
    """Start a Slurm with one held job and set `SLURM_CONF`; yield "".

    If Slurm is wanted and not available, yield the reason.
    """
    from rlsched.engine.fallback import plugin
    from tests.support.online.real_slurm import RealSlurm, lacking

    why_not = lacking() if wanted else "not requested"
    if why_not:
        yield why_not if wanted else ""
        return
    folder.chmod(0o755)
    text = plugin(("gpu",), folder / "gateway", 120.0, 0, exact=True)
    slurm = RealSlurm(folder / "slurm", 2, 4, plugin=text)
    os.environ["SLURM_CONF"] = str(slurm.config)
    try:
        yield ""
    finally:
        slurm.close()


def measure(folder: Path, only: Sequence[str]) -> list[dict[str, object]]:
    """Run all uses, and return a row for each. A row is printed when its use has ended."""
    places = {
        "history": folder / "history.csv.gz",
        "folder": folder,
        "trace": folder / "t.csv.gz",
        "cluster": folder / "c.toml",
    }
    synth = (
        "trace synth --like helios --jobs 4000 --load 0.9 --gpus 32 --seed 1 "
        "-o {trace} --cluster-out {cluster}"
    )
    rows: list[dict[str, object]] = []

    def use(first: First, cache: Path, home: Path, *, measured: bool = True) -> None:
        words = first.words.format(**places).split()
        said = typed(first, words, environment(cache, home))
        if not measured:
            return
        rows.append({"words": first.words, **said._asdict()})
        late = "  LATE" if said.silence_s > SILENT_S else ""
        print(
            f"{said.silence_s:6.2f} s silent, {said.took_s:6.1f} s, {said.cpu_s:6.1f} CPU s, "
            f"code {said.code}  {first.words[:70]}{late}{f' after: {said.before}' if late else ''}",
            flush=True,
        )

    use(First(synth), folder / "cache-synth", folder / "home", measured=not only or "synth" in only)
    with_starts(places["trace"], places["cluster"], places["history"])
    for number, first in enumerate(OFFLINE):
        wanted = not only or first.words.split()[0] in only
        if wanted or ("--records" in first.words and "explain" in only):
            use(first, folder / f"cache-{number}", folder / f"home-{number}", measured=wanted)
    online = [first for first in ONLINE if not only or first.words.split()[0] in only]
    beside_slurm = [first for first in SLURM if not only or first.words.split()[0] in only]
    if online or beside_slurm or "up" in only:
        cache, home = folder / "cache-up", folder / "home-up"
        up = First(f"up --nodes 2 --gpus 2 --address {ADDRESS}", ready="ready")
        if not only or "up" in only:
            use(up, folder / "cache-up-alone", folder / "home-up-alone")
        with (folder / "up.log").open("wb") as log:
            cluster = subprocess.Popen(
                [*RLSCHED, *up.words.split()], env=environment(cache, home), stdout=log, stderr=log
            )
        try:
            while "ready" not in (folder / "up.log").read_text() and cluster.poll() is None:
                time.sleep(0.1)
            for number, first in enumerate(online):
                use(first, folder / f"cache-online-{number}", home)
            with slurm_here(folder, wanted=bool(beside_slurm)) as why_not:
                if why_not:
                    print(f"left out: {', '.join(first.words for first in beside_slurm)}: {why_not}")
                for number, first in enumerate(() if why_not else beside_slurm):
                    use(first, folder / f"cache-slurm-{number}", home)
        finally:
            cluster.send_signal(signal.SIGINT)
            cluster.wait(60.0)
    return rows


def main() -> int:
    """Measure, and report verbs that are silent for too long."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="VERB")
    parser.add_argument("--json", action="store_true", help="JSON after the lines.")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in commands with `&`
    with tempfile.TemporaryDirectory(prefix="first-minute-") as folder:
        rows = measure(Path(folder), args.only)
    if args.json:
        print(json.dumps(rows))
    late = [row for row in rows if float(str(row["silence_s"])) > SILENT_S]
    failed = [row for row in rows if row["code"] not in (0, 130)]
    print(f"{len(rows)} uses, {len(late)} silent for more than {SILENT_S:g} s, {len(failed)} failed")
    return 1 if late or failed else 0


if __name__ == "__main__":
    sys.exit(main())
