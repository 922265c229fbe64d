"""Makes the picture of the tab «Decisions» in the documentation.

    .venv/bin/python -m studies.house.board_picture docs/decisions.png

A replay of a synthetic trace, a TensorBoard on its store, and a headless Chromium. Needs `chromium` and the
extra `browser`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import rlsched as rs
from rlsched.decisions.reading import StoreReader
from rlsched.workload.synth import synthesize

LAUNCH = "from rlsched.cli.traces.board import board; board()"
SIZE = {"width": 1360, "height": 760}
START_S = 120.0
LOADED = "document.querySelector('#note')?.textContent.includes('decisions,')"


def shared_job(folder: Path) -> str:
    """A job that shared its GPUs, from the middle of the run."""
    reader = StoreReader(folder)
    reader.refresh()
    attempts = reader.timeline.attempts
    middle = attempts[len(attempts) // 2 :]
    return next(one.job.job for one in middle if one.share_milli < 1000 and len(one.gpus) > 1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the picture of the tab «Decisions».")
    parser.add_argument("picture", type=Path)
    picture = parser.parse_args().picture
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as name:
        folder, out = Path(name) / "runs", Path(name) / "stdout"
        trace, spec = synthesize("helios", jobs=1200, load=0.95, gpus=48, seed=1)
        rs.simulate(trace, spec, ["tuned", "fifo-backfill"], models=rs.Models(), records=folder)
        with out.open("w") as stdout:
            command = [sys.executable, "-u", "-c", LAUNCH, str(folder), "--port", "0", "--host", "127.0.0.1"]
            server = subprocess.Popen(command, stdout=stdout)
        try:
            deadline_s = time.monotonic() + START_S
            while " at http" not in out.read_text():
                if time.monotonic() > deadline_s:
                    raise TimeoutError("TensorBoard does not start")
                time.sleep(0.05)
            with sync_playwright() as playwright:
                chromium = shutil.which("chromium")
                browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                page = browser.new_page(viewport=SIZE)
                page.goto(out.read_text().split(" at ")[1].split(" ")[0] + "#decisions")
                frame = page.wait_for_selector("iframe").content_frame()
                frame.wait_for_function(LOADED)
                frame.locator("#run").select_option("tuned")
                frame.wait_for_function(LOADED)
                frame.locator("#q").fill(shared_job(folder / "tuned"))
                frame.locator("#q").press("Enter")
                frame.wait_for_function("document.querySelector('#panel h2')?.textContent.startsWith('Job ')")
                for _ in range(2):
                    frame.locator("#in").click()
                page.wait_for_timeout(3000)
                page.screenshot(path=str(picture))
                browser.close()
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
