"""Plots as separate SVG files, in the style and the light colours of the report's page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from matplotlib import cycler, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

import rlsched.report.figures as report

_CSS: Final = Path(report.__file__).with_name("page.css").read_text(encoding="utf-8").partition("@media")[0]
_LIGHT: Final = {f"var(--{name})": colour for name, colour in re.findall(r"--([a-z\d-]+): (#\w{6})", _CSS)}
_STYLE: Final[dict[Any, Any]] = {
    **report.STYLE,
    "axes.prop_cycle": cycler(color=[*report.COLOURS, report.MUTED]),
    "figure.facecolor": _LIGHT["var(--panel)"],
    "axes.titlesize": 10.0,
    "lines.markersize": 3.0,
}
"""Colours C0 to C5 are the report's six, C6 is its grey."""
_PANEL_IN: Final = (3.6, 3.4)


def draw(path: Path, title: str, panels: int, fill: Callable[[list[Axes]], None]) -> None:
    """Write one figure with this many panels in a row; `fill` draws into them."""
    with rc_context(_STYLE):
        width_in, height_in = _PANEL_IN
        figure = Figure(figsize=(max(panels * width_in, 5.4), height_in), layout="constrained")
        axes = [figure.add_subplot(1, panels, number + 1) for number in range(panels)]
        fill(axes)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11.0)
        out = io.StringIO()
        FigureCanvasSVG(figure)
        figure.savefig(out, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = out.getvalue()
    for placeholder, variable in report.VARIABLES.items():
        text = text.replace(placeholder, _LIGHT[variable])
    path.write_text(text, encoding="utf-8")
