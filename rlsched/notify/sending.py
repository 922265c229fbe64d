"""Sends notices to a URL or to a program of the operator. An error indicates whether a retry can help."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException, HTTPMessage
from typing import IO, Final, Protocol
from urllib.parse import urlsplit

from rlsched.errors import InputError
from rlsched.notify.notices import Notice
from rlsched.terminal.visible import visible

EX_TEMPFAIL: Final = 75
"""Exit code, from sysexits.h, that requests a later retry."""
_ITS_OWN_FAULT: Final = (400, 413, 422)
"""HTTP status codes of a notice that will never be accepted. After other codes, a retry can help."""
_MOST_SAID: Final = 300


class NotDeliveredError(Exception):
    """A notice was not accepted. The message gives the reason in one line.

    Attributes:
        is_passing: Whether the reason is temporary, so that retries continue. If not, only a few tries are
            made.
    """

    def __init__(self, why: str, *, is_passing: bool) -> None:
        super().__init__(visible(why)[:_MOST_SAID])
        self.is_passing = is_passing


class Sends(Protocol):
    """Function that sends one notice, or raises a `NotDeliveredError`."""

    def __call__(self, notice: Notice) -> None: ...


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> None:
        """Treat a redirect as an error, because a redirected POST would become a GET."""
        del req, fp, code, msg, headers, newurl


class Webhook:
    """Sends a notice as JSON in an HTTP POST.

    Args:
        url: URL with scheme http or https.
        timeout_s: Time-out for the connection, and for each wait for data, seconds.
        token: Token to send as `Authorization: Bearer`; with "", no token is sent.

    Raises:
        InputError: the URL or the token is invalid.
    """

    def __init__(self, url: str, timeout_s: float, token: str = "") -> None:
        try:
            parts = urlsplit(url)
            known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            known = False
        if not known or not url.isascii() or not url.isprintable() or " " in url:
            raise InputError(f"--webhook {visible(url)}: expected a URL such as https://host/path")
        if not (token.isascii() and token.isprintable()):
            raise InputError("--webhook-token-file: expected one line of printable ASCII")
        self._url, self._timeout_s, self._token = url, timeout_s, token
        self._opener = urllib.request.build_opener(_NoRedirects)

    def __call__(self, notice: Notice) -> None:
        """Send a notice."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": notice.id}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self._url, notice.body, headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                answer.read(1)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 409:  # 409: the receiver already has the notice
                raise NotDeliveredError(
                    f"the receiver answered {error.code}", is_passing=error.code not in _ITS_OWN_FAULT
                ) from None
        except (OSError, HTTPException, ValueError) as error:
            why = error.reason if isinstance(error, urllib.error.URLError) else error
            raise NotDeliveredError(f"no answer from the receiver: {why}", is_passing=True) from None


class Command:
    """Runs a program without a shell, and writes the JSON of a notice to its standard input.

    Exit code 0 means delivered; 75 (`EX_TEMPFAIL`) means that the notice must be retried later. If a program
    exceeds the time-out, it is killed with all processes that it started, and the notice is retried later.

    Args:
        words: Program and its arguments, quoted as for a shell.
        timeout_s: Time-out for the program, seconds.

    Raises:
        InputError: `words` is empty, or a quote is not closed.
    """

    def __init__(self, words: str, timeout_s: float) -> None:
        try:
            self._argv: Sequence[str] = shlex.split(words)
        except ValueError as error:
            raise InputError(f"--command {visible(words)}: {error}") from None
        if not self._argv:
            raise InputError("--command: expected a program, got nothing")
        self._timeout_s = timeout_s

    def __call__(self, notice: Notice) -> None:
        """Send a notice."""
        with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as said:
            stdin.write(notice.body)
            stdin.seek(0)
            try:
                process = subprocess.Popen(
                    self._argv, stdin=stdin, stdout=said, stderr=said, start_new_session=True
                )
            except OSError as error:
                why = f"{self._argv[0]} cannot be run: {error.strerror}"
                raise NotDeliveredError(why, is_passing=True) from None
            try:
                code = process.wait(self._timeout_s)
            except subprocess.TimeoutExpired:
                raise NotDeliveredError(
                    f"the program did not end within {self._timeout_s:g} s", is_passing=True
                ) from None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if code:
                last = _last_line(said)
                words = f"exit code {code}" + (f": {last}" if last else "")
                raise NotDeliveredError(words, is_passing=code == EX_TEMPFAIL)


def _last_line(said: IO[bytes]) -> str:
    """Return the last line of a program's output."""
    size = said.seek(0, os.SEEK_END)
    said.seek(max(0, size - _MOST_SAID))
    lines = said.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
