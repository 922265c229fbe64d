"""`rlsched models`: lists the known figures of workloads, such as speed, and how many are measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rlsched.cli.shared.options import JSON, shown
from rlsched.terminal.show import percent, print_json, print_table

if TYPE_CHECKING:
    from rlsched.models.catalogue import Catalogue

_HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
_MARKS = {"measured": "", "fitted": "~", "assumed": "?", "defined": ""}
_NOTE = "~ fitted, ? assumed, neither: measured, or by definition; `--workload NAME` shows sources"
_HEADS = {
    "util_frac": "GPU use",
    "memory_mib": "MiB",
    "clock_bound": "rho",
    "dynamic_w": "W",
    "sensitivity": "sensitive",
    "cores_each": "cores",
    "node_penalty": "nodes",
    "checkpoint_s": "save s",
}
_UNITS = {"memory_mib": ".0f", "dynamic_w": ".0f", "checkpoint_s": ".0f", "cores_each": ".1f"}


@click.group(invoke_without_command=True, context_settings=_HELP)
@shown(
    "--gpu-type",
    default="V100",
    metavar="NAME",
    help="GPU type for which values are shown, named as in cluster files.",
)
@click.option(
    "--workload",
    metavar="NAME",
    help="Show only this workload: its values, each with its status (such as measured or assumed) and "
    "source.",
)
@JSON
@click.pass_context
def models(ctx: click.Context, gpu_type: str, workload: str | None, as_json: bool) -> None:
    """List the workloads that rlsched knows, with figures such as speed and power on one GPU type.

    \b
    Example:
      rlsched models --gpu-type P100
      rlsched models --workload resnet50-imagenet-b64
      rlsched models share
    """
    if ctx.invoked_subcommand is not None:
        return
    from rlsched.models.catalogue import load_catalogue

    catalogue = load_catalogue()
    kind = _type(gpu_type)
    if workload is not None:
        _one(catalogue, workload, None if _given(ctx, "gpu_type") is None else kind, as_json)
    else:
        _all(catalogue, kind, as_json)


@models.command()
@click.option("--gpu-type", metavar="NAME", help="Show only this GPU type.")
@JSON
def share(gpu_type: str | None, as_json: bool) -> None:
    """Print, by field and GPU type, which fraction of the figures is measured or fitted, not assumed.

    \b
    Example:
      rlsched models share
      rlsched models share --gpu-type P100 --json
    """
    from rlsched.models.catalogue import load_catalogue
    from rlsched.models.catalogue.table import FIELDS, GPU_TYPES

    catalogue = load_catalogue()
    kinds = GPU_TYPES if gpu_type is None else (_type(gpu_type),)
    numbers = range(1, len(catalogue.names) + 1)
    report = {
        kind: {"all": catalogue.measured_share(numbers, [kind])}
        | {field: catalogue.measured_share(numbers, [kind], [field]) for field in FIELDS}
        for kind in kinds
    }
    if as_json:
        print_json(report)
        return
    rows = [[field, *(percent(report[kind][field]) for kind in kinds)] for field in (*FIELDS, "all")]
    print_table(
        "Measured or fitted",
        ["field", *kinds],
        rows,
        "of cells with a value, each workload once; -: no value, or a value by definition",
    )


def _given(ctx: click.Context, option: str) -> Any:
    """Return the value of an option; None: the user has not given the option."""
    default = click.core.ParameterSource.DEFAULT
    return None if ctx.get_parameter_source(option) == default else ctx.params[option]


def _type(name: str) -> str:
    """Return the catalogue's name for a GPU type.

    Raises:
        InputError: the catalogue does not have the type. (An unknown name does not select the generic type.)
    """
    from rlsched.errors import InputError
    from rlsched.models.catalogue.catalogue import catalogue_type
    from rlsched.models.catalogue.table import GPU_TYPES

    found = catalogue_type(name)
    if found == "generic" and name != "generic":
        raise InputError(
            f"--gpu-type: expected one of {', '.join(GPU_TYPES)}, or an alias of a type, got {name!r}"
        )
    return found


def _all(catalogue: Catalogue, kind: str, as_json: bool) -> None:
    from rlsched.models.catalogue.table import FIELDS

    if as_json:
        print_json({name: _cells(catalogue, name, kind) for name in catalogue.names})
        return
    rows = []
    for name in catalogue.names:
        cells = [catalogue.cell(name, kind, field) for field in FIELDS]
        rows.append(
            [name]
            + [
                "-" if cell is None else f"{cell.value:{_UNITS.get(field, '.2f')}}{_MARKS[cell.status]}"
                for field, cell in zip(FIELDS, cells, strict=True)
            ]
        )
    heads = [_HEADS.get(field, field) for field in FIELDS]
    print_table(f"{len(rows)} workloads on {kind}", ["workload", *heads], rows, _NOTE)


def _one(catalogue: Catalogue, name: str, kind: str | None, as_json: bool) -> None:
    from rlsched.models.catalogue.table import FAMILIES, FAMILY_OF, FIELDS, GPU_TYPES

    catalogue.number(name)
    kinds = GPU_TYPES if kind is None else (kind,)
    if as_json:
        print_json({one: _cells(catalogue, name, one) for one in kinds})
        return
    family = FAMILIES[FAMILY_OF[name]]
    rows, used = [], {}
    for one in kinds:
        for field in FIELDS:
            cell = catalogue.cell(name, one, field)
            if cell is not None:
                rows.append([one, field, f"{cell.value:.4g}", cell.status, cell.source])
                used[cell.source] = catalogue.sources[cell.source]
    title = f"{name}: {family.domain}, {family.parameters_m:g} million parameters"
    print_table(title, ["GPU type", "field", "value", "status", "source"], rows)
    for key, source in used.items():
        click.echo(f"{key}: {source.what}" + (f"; error {source.error}" if source.error else ""))


def _cells(catalogue: Catalogue, name: str, kind: str) -> dict[str, Any]:
    """Return the figures of a workload on a GPU type for JSON: field -> figure (None: unknown)."""
    from rlsched.models.catalogue.table import FIELDS

    cells = {field: catalogue.cell(name, kind, field) for field in FIELDS}
    return {
        field: cell and {"value": cell.value, "status": cell.status, "source": cell.source}
        for field, cell in cells.items()
    }
