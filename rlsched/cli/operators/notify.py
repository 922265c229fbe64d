"""`rlsched notify`: sends webhooks or mail about jobs that were submitted with --notify."""

from __future__ import annotations

from pathlib import Path

import click

from rlsched.cli.shared.options import HOME, PATH, directory_option, shown
from rlsched.cli.shared.serving_options import LOG_FORMAT
from rlsched.errors import InputError, RlschedError
from rlsched.logs import LogFormat, set_up


@click.command()
@click.option(
    "--webhook", metavar="URL", help="URL (http or https) to which each notice is sent as JSON, by POST."
)
@click.option(
    "--webhook-token-file",
    type=PATH,
    metavar="FILE",
    help="File with the bearer token to send with each notice.",
)
@click.option(
    "--command",
    "words",
    metavar="CMD",
    help="Command to run for each notice, without a shell; the notice is passed as JSON on standard input.",
)
@directory_option(
    "Directory of the broker, which contains the journal. [default: broker in the directory of --keys]"
)
@click.option(
    "--cursor",
    type=PATH,
    metavar="FILE",
    help="File that records which notices were sent. [default: notify-webhook.json or notify-command.json in "
    "--dir]",
)
@shown(
    "--send-timeout-s",
    default=10.0,
    type=click.FloatRange(min=0, min_open=True, max=3600),
    help="Time-out for sending one notice, seconds.",
)
@shown(
    "--poll-s",
    default=1.0,
    type=click.FloatRange(min=0.05, max=3600),
    help="Interval between two reads of the journal, seconds.",
)
@click.option(
    "--once", is_flag=True, help="Send pending notices, and exit; the exit code is 1 if sending fails."
)
@LOG_FORMAT
@HOME
def notify(
    webhook: str | None,
    webhook_token_file: Path | None,
    words: str | None,
    directory: Path | None,
    cursor: Path | None,
    send_timeout_s: float,
    poll_s: float,
    once: bool,
    log_format: LogFormat,
    keys: Path | None,
) -> int:
    """Send notices about jobs submitted with --notify, by webhook or by a command, until Ctrl-C.

    Runs as a separate process, so that a slow receiver does not delay the broker. The process reads the
    broker's journal: run it as the broker's user on the broker's machine. Every notice is sent at least once,
    in order, even if this process or the broker restarts. A receiver can detect duplicates by the id of a
    notice. The first start skips the events that are already in the journal.

    \b
    Example:
      rlsched notify --webhook https://chat.example.org/hooks/rlsched
      rlsched notify --command '/opt/rlsched/share/mail_notice.py --domain example.org'
    """
    import threading

    from rlsched.broker.journal.journal import JOURNAL_FILE
    from rlsched.notify.following import CursorFile, NoticeFollower
    from rlsched.notify.sending import Command, NotDeliveredError, Sends, Webhook
    from rlsched.signals import on_signals
    from rlsched.transport.keys import default_home

    announce = set_up(log_format)
    if (webhook is None) == (words is None):
        raise InputError("expected either --webhook or --command; for both, run two processes")
    if webhook_token_file is not None and webhook is None:
        raise InputError("--webhook-token-file can be used only together with --webhook")
    send: Sends
    if webhook is not None:
        send, kind = Webhook(webhook, send_timeout_s, _token(webhook_token_file)), "webhook"
    else:
        send, kind = Command(words or "", send_timeout_s), "command"
    directory = directory or (keys or default_home()) / "broker"
    file = CursorFile(cursor or directory / f"notify-{kind}.json")
    stop = threading.Event()
    follower = NoticeFollower(directory / JOURNAL_FILE, file, send, stop)

    try:
        with on_signals(lambda *_: stop.set()):
            if not once:
                announce(f"rlsched notify ready: {directory / JOURNAL_FILE} is sent to a {kind}")
                follower.run(poll_s)
                return 0
            while follower.step(patiently=False):
                pass
    except NotDeliveredError as error:
        raise RlschedError(f"a notice was not accepted: {error}") from error
    finally:
        file.close()
    return 0


def _token(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--webhook-token-file {path}: cannot read it: {error}") from error
