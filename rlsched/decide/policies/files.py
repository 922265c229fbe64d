"""Functions for files that a policy names: make paths absolute, or copy content into the settings."""

from __future__ import annotations

import base64
import binascii
import io
import os
import zipfile
import zlib
from pathlib import Path
from typing import Final

from rlsched.decide.own import INLINE_ZIP, NO_PATHS, file_of, is_inline, is_own, rule_in_copy
from rlsched.decide.policies.policy import Policy
from rlsched.errors import CheckpointError

MAX_MEMBER_BYTES: Final = 64 << 20


MODEL_MEMBERS: Final = ("data", "policy.pth")
"""Members of a model of Stable-Baselines3 that a broker reads; the rest of the zip is for training."""
_ZIP_TIME: Final = (1980, 1, 1, 0, 0, 0)


def with_whole_paths(policy: Policy) -> Policy:
    """Return the policy with the relative paths of all its existing files made absolute."""
    rule, changed = policy.settings.rule, dict[str, str]()
    if is_own(rule) and file_of(rule).exists():
        changed["rule"] = rule_in_copy(rule, file_of(rule).resolve())
    for name in ("checkpoint", "dials"):
        text = getattr(policy.settings, name)
        if text not in NO_PATHS and not is_inline(text) and os.path.exists(text):
            changed[name] = str(Path(text).resolve())
    return policy.with_settings(**changed).named(policy.name) if changed else policy


def to_send(policy: Policy) -> Policy:
    """Return a copy of the policy for a broker on any machine: its settings contain strategies and models.

    A Python file is not included, only its absolute path. The path of a file that does not exist on this
    machine is not changed.

    Raises:
        InputError: a file cannot be read, is damaged, or does not fit this version.
    """
    policy = with_whole_paths(policy)
    rule, dials, checkpoint = policy.settings.rule, policy.settings.dials, policy.settings.checkpoint
    changed = dict[str, str]()
    if dials not in NO_PATHS and not is_inline(dials) and os.path.exists(dials):
        from rlsched.decide.dials.strategy import Strategy

        changed["dials"] = Strategy.read(dials).text
    if rule == "sb3" and checkpoint and not is_inline(checkpoint):
        file = model_file(checkpoint)
        if file.exists():
            changed["checkpoint"] = _as_text(read_members(file))
    return policy.with_settings(**changed).named(policy.name) if changed else policy


def missing_code(policy: Policy) -> str:
    """Return the path of this policy's Python file if the file is missing on this machine, else ""."""
    rule = policy.settings.rule
    return str(file_of(rule).absolute()) if is_own(rule) and not file_of(rule).is_file() else ""


def model_file(checkpoint: str | Path) -> Path:
    """Return the path of a model's file; adds the extension `.zip` if it is missing in `checkpoint`."""
    path = Path(checkpoint)
    named = path.with_name(f"{path.name}.zip")
    return named if not path.exists() and named.is_file() else path


def opened(checkpoint: str | Path) -> tuple[Path, io.BytesIO | None]:
    """Return (path of the model file, None) for a setting `checkpoint`.

    If the setting contains the model itself, return (name for messages, the zip).

    Raises:
        CheckpointError: the content is damaged.
    """
    if not is_inline(str(checkpoint)):
        return model_file(checkpoint), None
    name = Path("the model that was sent")
    try:
        text = str(checkpoint).removeprefix(INLINE_ZIP)
        return name, io.BytesIO(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError) as error:
        raise CheckpointError(f"{name}: expected {INLINE_ZIP} and base64: {error}; send it again") from error


def read_members(file: Path, content: io.BytesIO | None = None) -> dict[str, bytes]:
    """Return the bytes of the `MODEL_MEMBERS` of a model, each of at most `MAX_MEMBER_BYTES`.

    Args:
        file: Path of the zip; with `content`, used only in error messages.
        content: The zip itself; None: the zip is read from `file`.

    Raises:
        CheckpointError: the file does not exist, is not a zip or is damaged, or a member is missing or too
            large.
    """
    try:
        with zipfile.ZipFile(file if content is None else content) as archive:
            for name in MODEL_MEMBERS:
                if archive.getinfo(name).file_size > MAX_MEMBER_BYTES:
                    raise CheckpointError(
                        f"{file}: {name} is larger than {MAX_MEMBER_BYTES >> 20} MiB; "
                        "this is not a model of Stable-Baselines3"
                    )
            return {name: archive.read(name) for name in MODEL_MEMBERS}
    except OSError as error:
        raise CheckpointError(
            f"{file}: cannot read this model: {error.strerror or error}; give the path of a "
            "file that PPO.save wrote"
        ) from error
    except KeyError as error:
        raise CheckpointError(f"{file}: expected a model of Stable-Baselines3: {error.args[0]}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise CheckpointError(
            f"{file}: expected a zip written by PPO.save, got a damaged or other file: {error}"
        ) from error


def _as_text(members: dict[str, bytes]) -> str:
    """Return a zip of `members` as text for the setting `checkpoint`; equal members give equal text."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, body in members.items():
            archive.writestr(zipfile.ZipInfo(name, _ZIP_TIME), body, zipfile.ZIP_DEFLATED, 9)
    return INLINE_ZIP + base64.b64encode(packed.getvalue()).decode()
