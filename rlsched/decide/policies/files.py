"""Files that a policy names: makes their paths absolute, or copies their content into the settings."""

from __future__ import annotations

import base64
import binascii
import io
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rlsched.decide.own import INLINE_ZIP, NO_PATHS, file_of, is_inline, is_own, rule_in_copy
from rlsched.decide.policies.policy import Policy
from rlsched.errors import CheckpointError

POLICY_FILE: Final = "policy.zip"
MAX_MEMBER_BYTES: Final = 64 << 20


class Served(NamedTuple):
    """The members of a checkpoint that a broker reads; the rest of the zip is for training.

    Attributes:
        members: Names in the zip.
        made_by: The command that writes such a zip, for error messages.
    """

    members: tuple[str, ...]
    made_by: str


SERVED: Final = {
    "ppo": Served(("card.json", "schema.json", "weights.npz"), "`rlsched train-rows --out`"),
    "sb3": Served(("data", "policy.pth"), "MaskablePPO.save or PPO.save"),
}
"""Members of a checkpoint that a broker reads, by value of the setting `rule`."""
_ZIP_TIME: Final = (1980, 1, 1, 0, 0, 0)


def with_whole_paths(policy: Policy) -> Policy:
    """Return the policy with absolute paths, instead of relative ones, of all its files that exist."""
    rule, changed = policy.settings.rule, dict[str, str]()
    if is_own(rule) and file_of(rule).exists():
        changed["rule"] = rule_in_copy(rule, file_of(rule).resolve())
    for name in ("checkpoint", "dials"):
        text = getattr(policy.settings, name)
        if text not in NO_PATHS and not is_inline(text) and os.path.exists(text):
            changed[name] = str(Path(text).resolve())
    return policy.with_settings(**changed).named(policy.name) if changed else policy


def to_send(policy: Policy) -> Policy:
    """Return a copy of the policy for a broker on any machine: its settings contain the content of its files.

    Strategies and checkpoints are included, a checkpoint only with the members that a broker reads. Python
    files are not included. The path of a file that does not exist on this machine stays, for the broker to
    resolve. Paths are absolute.

    Raises:
        InputError: a file cannot be read, is damaged, or does not fit this version.
    """
    policy = with_whole_paths(policy)
    rule, dials, checkpoint = policy.settings.rule, policy.settings.dials, policy.settings.checkpoint
    changed = dict[str, str]()
    if dials and not is_inline(dials) and os.path.exists(dials):
        from rlsched.decide.dials.strategy import Strategy

        changed["dials"] = Strategy.read(dials).text
    if rule in SERVED and checkpoint not in NO_PATHS and not is_inline(checkpoint):
        file = zip_of(checkpoint)
        if file.exists() or os.path.exists(checkpoint):
            members = read_members(file, SERVED[rule].members, made_by=SERVED[rule].made_by)
            changed["checkpoint"] = _as_text(members)
    return policy.with_settings(**changed).named(policy.name) if changed else policy


def missing_code(policy: Policy) -> str:
    """Return the path of this policy's Python file if the file is missing on this machine, else ""."""
    rule = policy.settings.rule
    return str(file_of(rule).absolute()) if is_own(rule) and not file_of(rule).is_file() else ""


def zip_of(checkpoint: str | Path) -> Path:
    """Return the zip file of a path: `policy.zip` in a folder, or the file, with or without `.zip`."""
    path = Path(checkpoint)
    if path.is_dir():
        return path / POLICY_FILE
    named = path.with_name(f"{path.name}.zip")
    return named if not path.exists() and named.is_file() else path


def opened(checkpoint: str | Path) -> tuple[Path, io.BytesIO | None]:
    """Return a checkpoint's name for error messages, and its content if the setting contains the content.

    Raises:
        CheckpointError: the content is damaged.
    """
    if not is_inline(str(checkpoint)):
        return zip_of(checkpoint), None
    name = Path("the checkpoint that was sent")
    try:
        text = str(checkpoint).removeprefix(INLINE_ZIP)
        return name, io.BytesIO(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError) as error:
        raise CheckpointError(f"{name}: expected {INLINE_ZIP} and base64: {error}; send it again") from error


def read_members(
    file: Path,
    names: Sequence[str],
    *,
    content: io.BytesIO | None = None,
    limit_bytes: int = MAX_MEMBER_BYTES,
    made_by: str = SERVED["ppo"].made_by,
) -> dict[str, bytes]:
    """Return the bytes of the named members of a checkpoint, each of at most `limit_bytes`.

    Args:
        file: The zip. With `content`, only its name for error messages.
        names: Names of the members.
        content: The bytes of the zip; None: they are read from the file.
        limit_bytes: Maximum size of each member, unpacked, bytes.
        made_by: The command that writes such a zip, for error messages.

    Raises:
        CheckpointError: the file does not exist, is not a zip or is damaged, or a member is missing or too
            large.
    """
    try:
        with zipfile.ZipFile(file if content is None else content) as archive:
            for name in names:
                if archive.getinfo(name).file_size > limit_bytes:
                    raise CheckpointError(
                        f"{file}: {name} is larger than {limit_bytes >> 20} MiB; "
                        "this is not a checkpoint of rlsched"
                    )
            return {name: archive.read(name) for name in names}
    except OSError as error:
        raise CheckpointError(
            f"{file}: cannot read this checkpoint: {error.strerror or error}; give the "
            f"path of a file that {made_by} wrote"
        ) from error
    except KeyError as error:
        raise CheckpointError(f"{file}: not a checkpoint of rlsched: {error.args[0]}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise CheckpointError(
            f"{file}: expected a zip written by {made_by}, got a damaged or other file: {error}"
        ) from error


def _as_text(members: dict[str, bytes]) -> str:
    """Return a zip of these members as a value of the setting `checkpoint`; equal members give equal text."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, body in members.items():
            archive.writestr(zipfile.ZipInfo(name, _ZIP_TIME), body, zipfile.ZIP_DEFLATED, 9)
    return INLINE_ZIP + base64.b64encode(packed.getvalue()).decode()
