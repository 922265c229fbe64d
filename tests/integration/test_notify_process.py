"""`rlsched notify` with a real broker: killed, with an unreachable receiver, nothing lost; and its mail."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rlsched.cli.operators.notify import notify
from rlsched.client.client import Client
from tests.support.online.cluster import Cluster, all_up, until

_MAIN = (
    "from rlsched.cli.operators.notify import notify; raise SystemExit(notify.main(standalone_mode=False))"
)
NOTIFY = (sys.executable, "-c", _MAIN)
MAIL = Path(__file__).parents[2] / "examples" / "operation" / "mail_notice.py"


class _Hook(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Hooks)
        server.heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class Hooks(ThreadingHTTPServer):
    """A receiver that can stop and restart at the same port."""

    allow_reuse_address = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Hook)
        self.heard: list[dict[str, object]] = []
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, nodes=("n0",))
    yield cluster
    cluster.close()


@pytest.mark.slow
def test_no_notice_is_lost_if_receiver_and_process_stop(cluster: Cluster, tmp_path: Path) -> None:
    hooks = Hooks()
    port, folder = hooks.server_port, tmp_path / "broker"
    words = [*NOTIFY, "--webhook", f"http://127.0.0.1:{port}/", "--dir", str(folder), "--poll-s", "0.05"]

    def begin() -> subprocess.Popen[bytes]:
        with (tmp_path / "notify.log").open("ab") as log:
            return subprocess.Popen(words, stdout=log, stderr=log)

    def notices() -> list[tuple[object, object]]:
        return [(one["job"], one["event"]) for one in hooks.heard]

    process = begin()
    try:
        until((folder / "notify-webhook.json").exists, "notify has begun")
        with Client(cluster.address, home=cluster.keys) as client:
            all_up(client, 1)
            job = client.submit(["false"], notify=["start", "fail"])
            until(lambda: notices() == [(job, "start"), (job, "fail")], "both are sent")
            hooks.close()
            second = client.submit(["true"], name='caf\u00e9 "x" $(id)', notify=["start", "end"])
            assert client.wait(second).state == "completed"
            process.send_signal(signal.SIGKILL)
            process.wait()
            third = client.submit(["sleep", "600"], notify=["end"])
            client.cancel(third)
            assert client.wait(third).state == "cancelled"
        process = begin()
        hooks = Hooks(port)
        until(lambda: len(hooks.heard) >= 3, "the rest is sent")
        assert notices() == [(second, "start"), (second, "end"), (third, "end")]
        assert [one["state"] for one in hooks.heard] == ["running", "completed", "cancelled"]
        assert hooks.heard[0]["name"] == 'café "x" $(id)'
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        hooks.close()


@pytest.mark.slow
def test_command_mails_through_sendmail(cluster: Cluster, tmp_path: Path) -> None:
    sendmail, sent = tmp_path / "sendmail", tmp_path / "sent"
    sendmail.write_text(f"#!/bin/sh\ncat >> {sent}\n")
    sendmail.chmod(0o755)
    mail = f"{sys.executable} {MAIL} --domain example.org --sendmail {sendmail}"
    words = ["--command", mail, "--dir", str(tmp_path / "broker"), "--once"]
    assert notify.main(words, standalone_mode=False) == 0
    with Client(cluster.address, home=cluster.keys) as client:
        all_up(client, 1)
        job = client.submit(["false"], name="night run", user="ada", notify=["end"])
        assert client.wait(job).state == "failed"
    assert notify.main(words, standalone_mode=False) == 0
    text = sent.read_text()
    assert "To: ada@example.org\n" in text
    assert f"Subject: job {job} failed: night run\n" in text
    assert "state: failed\n" in text
    assert notify.main(words, standalone_mode=False) == 0
    assert sent.read_text() == text, "sent once"


@pytest.mark.parametrize("user", ["ada, eve", "ada@x.org\nBcc: eve", "", "-f", "a b", "ada>"])
def test_user_without_a_mailbox_gets_no_mail(user: str, tmp_path: Path) -> None:
    notice = json.dumps({"id": "1", "event": "end", "job": 1, "name": "x\r\nBcc: eve@x.org", "user": user})
    sendmail = tmp_path / "sendmail"
    sendmail.write_text(f"#!/bin/sh\ncat > {tmp_path / 'sent'}\n")
    sendmail.chmod(0o755)
    words = [sys.executable, str(MAIL), "--domain", "x.org", "--sendmail", str(sendmail)]
    done = subprocess.run(words, input=notice.encode(), capture_output=True, check=True, timeout=60)
    assert b"no mailbox" in done.stderr
    assert not (tmp_path / "sent").exists()
    good = notice.replace(json.dumps(user), '"ada"')
    subprocess.run(words, input=good.encode(), check=True, timeout=60)
    head = (tmp_path / "sent").read_text().partition("\n\n")[0]
    assert "\nBcc" not in head
    assert "Subject: job 1 over: x??Bcc: eve@x.org" in head
