"""Parses the options that request GPUs by count and type; the syntax of `sbatch` is accepted too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import click

from rlsched.errors import InputError
from rlsched.wire.messages.job_settings import MAX_GANG_GPUS

_GRES: Final = r"(?:gres[/:])?gpu(?::([A-Za-z][\w.-]*))?(?::(\d+))?"
_OF_A_TYPE: Final = r"([A-Za-z][\w.-]*):(\d+)"
_NUMBER: Final[click.ParamType[Any]] = click.IntRange(1, MAX_GANG_GPUS)


class _Gpus(NamedTuple):
    """A parsed request for GPUs: `a100:2` has the count 2 and the type `a100`; the type "" allows any."""

    number: int
    gpu_type: str = ""


class GpusParam(click.ParamType[_Gpus]):
    """Parameter type of a request for GPUs: a count, or a type and a count as in Slurm (`a100:2`)."""

    name = "gpus"
    expected = f"[TYPE:]COUNT, such as 2 or a100:2, with a COUNT from 1 to {MAX_GANG_GPUS:,}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> _Gpus:
        """Return the request that the text describes, else fail with a usage error."""
        if isinstance(value, _Gpus):
            return value
        found = re.fullmatch(_OF_A_TYPE, str(value))
        number = found[2] if found else value
        return _Gpus(_NUMBER.convert(number, param, ctx), found[1] if found else "")


def total_gpus(asked: Mapping[str, Any]) -> int:
    """Return the number of GPUs of the whole job, counted as in `sbatch`.

    Raises:
        InputError: `--gres` requests something other than GPUs, or the options on tasks exclude each other.
    """
    return _counted(asked).number


def num_tasks(asked: Mapping[str, Any]) -> int | None:
    """Return the number of tasks of the whole job, counted as in `sbatch`; None: no option sets it.

    Raises:
        InputError: as in `total_gpus`.
    """
    per_node, per_gpu = asked["ntasks_per_node"], asked["ntasks_per_gpu"]
    tasks: int | None = asked["ntasks"] or (per_node and per_node * (asked["nodes"] or 1))
    return per_gpu * total_gpus(asked) if per_gpu and not tasks else tasks


def gpu_types(asked: Mapping[str, Any]) -> list[str]:
    """Return the accepted GPU types: from `--gpu-type`, else `--constraint`, else the other GPU options.

    An empty list allows any type.

    Raises:
        InputError: an option has invalid GPU types.
    """
    for option in ("gpu_type", "constraint"):
        if asked.get(option) is not None:
            return types_named(asked[option], f"--{option.replace('_', '-')}")
    own = _counted(asked).gpu_type
    return [own] if own else []


def preferred_types(asked: Mapping[str, Any]) -> list[str]:
    """Return the GPU types of `--prefer`; the list is empty if the job prefers no type.

    Raises:
        InputError: the option has invalid GPU types.
    """
    return [] if asked["prefer"] is None else types_named(asked["prefer"], "--prefer")


def types_named(text: str, option: str) -> list[str]:
    """Return the GPU types in a list separated by `,` or `|`; empty if the text is `any`.

    Raises:
        InputError: the text is not such a list, or a type is empty.
    """
    if text.strip().lower() == "any":
        return []
    found = [one.strip() for one in re.split(r"[,|]", text)]
    odd = next((one for one in found if one.lower() == "any" or not re.fullmatch(r"\w[\w ./-]*", one)), None)
    if odd is not None:
        raise InputError(f"{option} {text!r}: expected any, or GPU types such as H100 or A100,H100")
    return found


def _counted(asked: Mapping[str, Any]) -> _Gpus:
    nodes, per_gpu = asked["nodes"] or 1, asked["ntasks_per_gpu"]
    odd = next((name for name in ("gpus_per_task", "ntasks_per_node") if per_gpu and asked[name]), "")
    if odd:
        raise InputError(f"--ntasks-per-gpu and --{odd.replace('_', '-')}: expected one of the two, got both")
    if asked["gpus"] is not None:
        return _times(asked["gpus"], 1)
    if asked["gpus_per_node"] is not None:
        return _times(asked["gpus_per_node"], nodes)
    if asked["gres"] is not None:
        found = re.fullmatch(_GRES, asked["gres"])
        if found is None:
            raise InputError(f"--gres {asked['gres']!r}: expected gpu:N or gpu:TYPE:N, the GPUs on each node")
        return _Gpus(int(found[2] or 1) * nodes, found[1] or "")
    if asked["gpus_per_task"] is not None:
        return _times(asked["gpus_per_task"], num_tasks(asked) or 1)
    return _Gpus(-(-asked["ntasks"] // per_gpu) if per_gpu and asked["ntasks"] else 1)


def _times(gpus: _Gpus, factor: int) -> _Gpus:
    return gpus._replace(number=gpus.number * factor)
