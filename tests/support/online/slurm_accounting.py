"""A real slurmdbd of this machine with its own MariaDB, as root.

Debian: `apt-get install slurmdbd mariadb-server` in addition to the packages of `real_slurm`.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

from tests.support.online import real_slurm
from tests.support.online.cluster import until
from tests.support.ports import free_addresses

PROGRAMS = ("slurmdbd", "sacct", "sacctmgr", "mariadbd", "mariadb", "mariadb-install-db")
_DATABASE = """
ArchiveEvents=no
AuthType=auth/munge
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
PidFile={directory}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct
"""


def lacking() -> str:
    """Missing requirements of this machine for a Slurm with accounting, "" if none."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return real_slurm.lacking() or (f"not installed: {', '.join(missing)}" if missing else "")


class SlurmAccounting:
    """Slurm's accounting for a cluster `test`, which `RealSlurm` then starts.

    Attributes:
        settings: Lines of slurm.conf.
    """

    def __init__(self, directory: Path) -> None:
        real_slurm.start_munged()
        self.directory, self.processes = directory, list[subprocess.Popen[bytes]]()
        (directory / "data").mkdir(parents=True)
        database_port, port = (one.rpartition(":")[2] for one in free_addresses(2))
        host = socket.gethostname().partition(".")[0]
        self.settings = (
            "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n"
            f"AccountingStoragePort={port}\nAccountingStorageTRES=gres/gpu\n"
        )
        self._start_database(database_port)
        config = directory / "slurmdbd.conf"
        config.write_text(
            _DATABASE.format(host=host, port=port, directory=directory, database_port=database_port)
        )
        config.chmod(0o600)
        (directory / "slurm.conf").write_text(
            f"ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nAuthType=auth/munge\n{self.settings}"
        )
        self._environment = {**os.environ, "SLURM_CONF": str(directory / "slurm.conf")}
        self._start("slurmdbd", "-D")
        until(lambda: self._manages("show", "cluster"), "slurmdbd answers")
        assert self._manages("-i", "add", "cluster", "test")

    def _start_database(self, port: str) -> None:
        data, own = self.directory / "data", f"--socket={self.directory}/socket"
        subprocess.run(
            ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root", "--skip-test-db"],
            check=True,
            capture_output=True,
        )
        self._start(
            *("mariadbd", "--no-defaults", f"--datadir={data}", own, "--user=root", f"--port={port}"),
            *("--bind-address=127.0.0.1", "--skip-name-resolve", f"--pid-file={self.directory}/pid"),
            *("--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900"),
        )
        permit = (
            "CREATE USER slurm@'127.0.0.1' IDENTIFIED BY 'slurm'; "
            "GRANT ALL ON slurm_acct.* TO slurm@'127.0.0.1'"
        )

        def is_permitted() -> bool:
            asked = ["mariadb", "--no-defaults", own, "-u", "root", "-e", permit]
            return subprocess.run(asked, capture_output=True, check=False).returncode == 0

        until(is_permitted, "the database answers")

    def _start(self, *words: str) -> None:
        environment = getattr(self, "_environment", None)
        with (self.directory / f"{words[0]}.log").open("ab") as log:
            self.processes.append(subprocess.Popen(words, stdout=log, stderr=log, env=environment))

    def _manages(self, *words: str) -> bool:
        asked = subprocess.run(["sacctmgr", *words], env=self._environment, capture_output=True, check=False)
        return asked.returncode == 0

    def close(self) -> None:
        """End both processes."""
        for process in reversed(self.processes):
            process.terminate()
            process.wait(60.0)
