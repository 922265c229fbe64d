#!/usr/bin/env python3
"""Mails a notice of `rlsched notify --command` with sendmail.

    rlsched notify --command '/opt/rlsched/share/mail_notice.py --domain example.org'

The notice is JSON on standard input. Mail goes to the job's user at --domain. A user whose name is not a
plain mailbox gets none, and no text of a user can add a header or a recipient.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from email.message import EmailMessage

WORDS = {"start": "started", "requeue": "queued again", "end": "over", "fail": "failed"}


def mail(notice: dict[str, object], domain: str, sender: str) -> EmailMessage:
    """Return the mail for a notice."""
    event, number = WORDS.get(str(notice["event"]), str(notice["event"])), notice.get("called", notice["job"])
    name = re.sub(r"[^ -~]", "?", str(notice["name"]))
    message = EmailMessage()
    message["From"], message["To"] = sender, f"{notice['user']}@{domain}"
    message["Subject"] = f"job {number} {event}: {name}"
    message["Message-ID"] = f"<{notice['id']}@{domain}>"
    message["Auto-Submitted"] = "auto-generated"
    lines = [f"{key}: {value}" for key, value in notice.items() if value not in ("", None)]
    message.set_content("\n".join(re.sub(r"[\x00-\x1f\x7f]", "?", line) for line in lines) + "\n")
    return message


def main() -> int:
    """Read a notice and send its mail."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--domain", required=True, help="mail goes to USER@DOMAIN")
    parser.add_argument("--sender", default="rlsched", help="[default: %(default)s]")
    parser.add_argument("--sendmail", default="/usr/sbin/sendmail", help="[default: %(default)s]")
    arguments = parser.parse_args()
    notice = json.loads(sys.stdin.readline())
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", notice["user"]):
        print(f"no mailbox: {notice['user']!r}", file=sys.stderr)
        return 0
    message = mail(notice, arguments.domain, arguments.sender)
    sent = subprocess.run([arguments.sendmail, "-t", "-i"], input=message.as_bytes(), check=False)
    return sent.returncode  # sendmail exits with 75 if it should be retried


if __name__ == "__main__":
    raise SystemExit(main())
