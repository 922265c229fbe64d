"""The broker on a disk that really fills up: a small tmpfs. Needs root to mount it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rlsched.errors import BrokerUnavailableError, InputError
from tests.support.online.cluster import Cluster, all_up, until

MIB = 1 << 20
SIZE_MIB = 40
FLOOR_MIB = 12


class Small:
    """A file system of `SIZE_MIB`, and a file that fills it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def leave(self, free_mib: float) -> None:
        """Fill the disk except for this space, or free some."""
        filler = self.path / "filler"
        filler.unlink(missing_ok=True)
        taken = shutil.disk_usage(self.path).free - int(free_mib * MIB)
        with filler.open("wb") as file:
            file.write(b"x" * taken)

    def take_all(self) -> None:
        """Fill the disk to its last page."""
        with suppress(OSError), (self.path / "filler").open("ab", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    path = tmp_path / "broker"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m,mode=700", "tmpfs", str(path)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no tmpfs can be mounted here: that needs root")
    yield Small(path)
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_full_disk_only_stops_new_jobs(small: Small) -> None:
    cluster = Cluster(
        small.path.parent,
        nodes=("n0",),
        broker_options=("--policy", "fifo", "--min-free-mib", str(FLOOR_MIB)),
    )
    reserve = small.path / "reserve"
    gates = [small.path.parent / f"gate-{n}" for n in range(3)]
    try:
        with cluster.client() as client, cluster.client(timeout_s=1.0) as hasty:
            all_up(client, 1)
            until(reserve.exists, "the reserve is there")
            wait = "while ! [ -e $0 ]; do sleep 0.02; done; exit 7"
            jobs = [client.submit(["sh", "-c", wait, str(gate)]) for gate in gates]
            until(lambda: [client.job(job).state for job in jobs] == ["running"] * 3, "all run")

            small.leave(FLOOR_MIB / 2)
            until(lambda: "new jobs are refused" in cluster.log("broker"), "the floor is noticed")
            with pytest.raises(InputError, match="disk is nearly full"):
                client.submit(["true"])
            gates[0].touch()
            until(lambda: client.job(jobs[0]).state == "failed", "an end is committed below the floor")

            small.take_all()
            gates[1].touch()
            until(lambda: client.job(jobs[1]).state == "failed", "an end is committed on the reserve")

            while "nothing is acknowledged" not in cluster.log("broker"):
                small.take_all()
                gates[2].touch()
                with suppress(BrokerUnavailableError, InputError):
                    hasty.job(jobs[2])
                    hasty.cancel(jobs[1])
            assert cluster.running["broker"].poll() is None

            small.leave(SIZE_MIB - 8)
            until(lambda: client.job(jobs[2]).state == "failed", "held facts are committed")
            until(lambda: "new jobs are accepted again" in cluster.log("broker"), "there is space")
            assert client.wait(client.submit(["true"])).exit_code == 0
            assert [client.job(job).exit_code for job in jobs] == [7, 7, 7]
            assert [client.job(job).attempt for job in jobs] == [1, 1, 1]
            until(reserve.exists, "the reserve is there again")
        cluster.kill("broker")
        cluster.start("broker")
        with cluster.client() as client:
            assert [client.job(job).exit_code for job in jobs] == [7, 7, 7]
    finally:
        cluster.close()
