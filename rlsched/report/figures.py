"""Draws plots as SVG for an HTML page. Text stays text, and colours are CSS variables of the page."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from rlsched.terminal.show import in_words

INK, MUTED, GRID = "#010101", "#020202", "#030303"
COLOURS = ("#0a0a01", "#0a0a02", "#0a0a03", "#0a0a04", "#0a0a05", "#0a0a06")
GAIN_COLOURS = ("#0b0b01", "#0b0b02", "#0b0b03")
"""Colours for better, equal and worse results, which differ from `COLOURS`."""
VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    **{colour: f"var(--c{number})" for number, colour in enumerate(COLOURS, 1)},
    **dict(zip(GAIN_COLOURS, ("var(--better)", "var(--same)", "var(--worse)"), strict=True)),
}
"""Colour in a plot -> variable of page.css that replaces it in the SVG."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "rlsched",
    "text.parse_math": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 10.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "lines.linewidth": 1.8,
}
_WIDTH_IN, _HEIGHT_IN = 9.0, 3.4
_HEAT_STEPS = 9
_UNITS = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
_LONGEST_LABEL = 16
_TIMES = (
    (1.0, "1 s"),
    (10.0, "10 s"),
    (60.0, "1 min"),
    (600.0, "10 min"),
    (3600.0, "1 h"),
    (6 * 3600.0, "6 h"),
    (86400.0, "1 d"),
    (7 * 86400.0, "1 wk"),
    (30 * 86400.0, "30 d"),
    (365 * 86400.0, "1 y"),
)

Values = Sequence[float] | NDArray[np.float64]


class Series(NamedTuple):
    """A named series of values in a plot.

    Attributes:
        label: Name in the legend.
        values: One value per position.
        dashed: Whether the line is dashed.
    """

    label: str
    values: Values
    dashed: bool = False


class Point(NamedTuple):
    """A named point in a plot of two costs."""

    label: str
    x: float
    y: float


class Plot(NamedTuple):
    """One plot.

    Attributes:
        svg: `<svg>...</svg>`; its IDs are unique in the page.
        caption: Description in one sentence.
    """

    svg: str
    caption: str


class Canvas:
    """Draws the plots of one page, and numbers them, so that the IDs in their SVG are unique."""

    def __init__(self) -> None:
        self._drawn = 0

    def bars(
        self,
        labels: Sequence[str],
        series: Sequence[Series],
        caption: str,
        x_label: str,
        stacked: bool = False,
        colours: Sequence[str] = COLOURS,
    ) -> Plot:
        """Draw fractions (0 to 1) as bars in %, side by side or stacked.

        `colours`: a colour for each series, from `COLOURS` or `GAIN_COLOURS`.
        """
        with rc_context(STYLE):
            figure, axes = _axes()
            at = np.arange(len(labels))
            width = 0.7 if stacked else 0.8 / len(series)
            base = np.zeros(len(labels))
            for number, one in enumerate(series):
                values = 100 * np.asarray(one.values, dtype=np.float64)
                left = at if stacked else at + (number - (len(series) - 1) / 2) * width
                bottom = base if stacked else np.zeros(len(labels))
                axes.bar(left, values, width, bottom=bottom, color=colours[number], label=one.label)
                base = base + np.nan_to_num(values)
            _named_positions(axes, labels)
            axes.set_xlabel(x_label)
            axes.set_ylabel("%")
            axes.set_ylim(0, 100 if stacked else None)
            axes.grid(axis="x", visible=False)
            _legend(figure, len(series))
            return self._finish(figure, caption)

    def time_bars(self, labels: Sequence[str], series: Sequence[Series], caption: str, x_label: str) -> Plot:
        """Draw durations in seconds as bars on a linear axis, each labelled with its value.

        The unit of the axis, from seconds to days, is the largest unit that the longest bar reaches.
        """
        with rc_context(STYLE):
            figure, axes = _axes()
            at, width = np.arange(len(labels)), 0.8 / len(series)
            longest = max(float(np.nanmax(one.values, initial=0.0)) for one in series)
            unit_s, unit = _unit_of(longest)
            for number, one in enumerate(series):
                values = np.asarray(one.values, dtype=np.float64)
                left = at + (number - (len(series) - 1) / 2) * width
                bars = axes.bar(left, values / unit_s, width, color=COLOURS[number], label=one.label)
                axes.bar_label(
                    bars, [in_words(value) for value in values], padding=2, rotation=90, fontsize=7
                )
            axes.set_ylim(0.0, max(longest / unit_s, 1.0) * 1.25)
            axes.set_ylabel(unit)
            _named_positions(axes, labels)
            axes.set_xlabel(x_label)
            axes.grid(axis="x", visible=False)
            _legend(figure, len(series))
            return self._finish(figure, caption)

    def curves(self, at_s: Values, series: Sequence[Series], caption: str, x_label: str) -> Plot:
        """Draw cumulative distributions of durations: fractions (0 to 1) over a logarithmic time axis."""
        with rc_context(STYLE):
            figure, axes = _axes()
            for number, one in enumerate(series):
                axes.plot(at_s, 100 * np.asarray(one.values), color=COLOURS[number], label=one.label)
            axes.set_xscale("log")
            axes.set_xlim(1.0, max(float(at_s[-1]), 10.0))
            axes.set_ylim(0, 100)
            _time_ticks(axes)
            axes.set_xlabel(x_label)
            axes.set_ylabel("% at or below")
            _legend(figure, len(series))
            return self._finish(figure, caption)

    def shares(self, x_frac: Values, series: Series, caption: str, x_label: str, y_label: str) -> Plot:
        """Draw a Lorenz curve from two cumulative fractions (0 to 1), and the line of an even split."""
        with rc_context(STYLE):
            figure, axes = _axes()
            axes.plot(
                100 * np.asarray(x_frac),
                100 * np.asarray(series.values),
                color=COLOURS[0],
                label=series.label,
            )
            axes.plot(
                [0, 100], [0, 100], color=MUTED, linestyle=(0, (4, 3)), linewidth=1.2, label="even split"
            )
            axes.set_xlim(0, 100)
            axes.set_ylim(0, 101)
            axes.set_xlabel(x_label)
            axes.set_ylabel(y_label)
            _legend(figure, 2)
            return self._finish(figure, caption)

    def steps(
        self, edges: Sequence[float], series: Sequence[Series], caption: str, x_label: str, y_label: str
    ) -> Plot:
        """Draw values that are constant between successive edges: E edges, and E - 1 values per series."""
        with rc_context(STYLE):
            figure, axes = _axes()
            for number, one in enumerate(series):
                style: dict[str, Any] = {"linestyle": (0, (5, 3))} if one.dashed else {}
                axes.stairs(
                    one.values,
                    edges,
                    baseline=None,
                    color=COLOURS[number],
                    label=one.label,
                    linewidth=1.6,
                    **style,
                )
            axes.set_xlim(edges[0], edges[-1])
            axes.set_ylim(
                1.06 * min(0.0, *(float(np.nanmin(one.values)) for one in series)),
                1.06 * max(1e-9, *(float(np.nanmax(one.values)) for one in series)),
            )
            axes.xaxis.set_major_locator(MaxNLocator(10, integer=edges[-1] - edges[0] > 4))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
            axes.set_xlabel(x_label)
            axes.set_ylabel(y_label)
            _legend(figure, len(series))
            return self._finish(figure, caption)

    def front(self, points: Sequence[Point], caption: str, x_label: str, y_label: str) -> Plot:
        """Draw points of two costs, of which less is better, and a line through the best points.

        A point is one of the best if no other point is better in one of its costs and at least as good in the
        other (the Pareto front).

        `points`: x is a duration in seconds. The unit of its axis is the largest that a point reaches.
        """
        with rc_context(STYLE):
            figure, axes = _axes()
            unit_s, unit = _unit_of(max(point.x for point in points))
            best = front_of(points)
            axes.plot(
                [point.x / unit_s for point in best],
                [point.y for point in best],
                color=MUTED,
                linewidth=1.2,
                linestyle=(0, (4, 3)),
                zorder=1,
            )
            for point in points:
                colour = COLOURS[0] if point in best else COLOURS[1]
                axes.scatter([point.x / unit_s], [point.y], color=colour, zorder=2)
                axes.annotate(
                    _short(point.label),
                    (point.x / unit_s, point.y),
                    xytext=(6, 4),
                    textcoords="offset points",
                    fontsize=8.5,
                )
            axes.margins(0.12)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
            axes.set_xlabel(f"{x_label}, {unit}")
            axes.set_ylabel(y_label)
            return self._finish(figure, caption)

    def week(
        self, days: Sequence[str], values: Sequence[Sequence[float | None]], caption: str, unit: str
    ) -> Plot:
        """Draw a heat map with 7 rows (days) of 24 hours. Unknown values are gaps.

        The colour scale begins at 0, or at the lowest value if this value is above half of the highest value.
        """
        with rc_context(STYLE):
            figure, axes = _axes()
            cells = np.array(values, dtype=np.float64)
            strengths = np.linspace(0.06, 1.0, _HEAT_STEPS)
            colours = ListedColormap([(10 / 255, 10 / 255, 1 / 255, alpha) for alpha in strengths])
            low, high = float(np.nanmin(cells)), float(np.nanmax(cells))
            low = low if low > high / 2 and low < high else 0.0
            mesh = axes.pcolormesh(np.ma.masked_invalid(cells), cmap=colours, vmin=low, vmax=high or 1.0)
            axes.set_yticks(np.arange(7) + 0.5, days)
            axes.set_xticks(np.arange(0, 24, 3) + 0.5, [f"{hour:02d}" for hour in range(0, 24, 3)])
            axes.tick_params(length=0)
            axes.invert_yaxis()
            axes.grid(visible=False)
            axes.spines[:].set_visible(False)
            axes.set_xlabel("hour")
            bar = figure.colorbar(mesh, ax=axes, pad=0.02, label=unit)
            bar.outline.set_visible(False)
            bar.ax.tick_params(length=0)
            return self._finish(figure, caption)

    def _finish(self, figure: Figure, caption: str) -> Plot:
        out = io.StringIO()
        FigureCanvasSVG(figure)
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        with warnings.catch_warnings():
            # Names in other scripts are laid out with placeholder glyphs; the browser uses its own fonts.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
            figure.savefig(out, format="svg", metadata=nothing)
        self._drawn += 1
        return Plot(_inline(out.getvalue(), f"p{self._drawn}-", caption), caption)


def front_of(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other point beats in both costs (`Canvas.front`), by increasing x."""
    best = list[Point]()
    for point in sorted(points, key=lambda one: (one.x, one.y)):
        if not best or point.y < best[-1].y or point[1:] == best[-1][1:]:
            best.append(point)
    return best


def _unit_of(longest_s: float) -> tuple[float, str]:
    """Return the largest unit of time that a duration reaches, as (seconds, name)."""
    return next((pair for pair in _UNITS if pair[0] <= longest_s), _UNITS[-1])


def _axes() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN), layout="constrained")
    return figure, figure.add_subplot()


def _legend(figure: Figure, entries: int) -> None:
    if entries > 1:
        figure.legend(loc="outside upper left", ncols=min(entries, 6), handlelength=1.4, columnspacing=1.4)


def _named_positions(axes: Axes, labels: Sequence[str]) -> None:
    labels = [_short(label) for label in labels]
    crowded = sum(len(label) for label in labels) > 70
    axes.set_xticks(
        range(len(labels)), labels, rotation=40 if crowded else 0, ha="right" if crowded else "center"
    )
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.6, len(labels) - 0.4)


def _short(label: str) -> str:
    """Shorten a name to one line, to fit below a bar."""
    shown = "".join(character if character.isprintable() else " " for character in label)
    return shown if len(shown) <= _LONGEST_LABEL else shown[: _LONGEST_LABEL - 1] + "…"


def _time_ticks(axes: Axes) -> None:
    axis = axes.xaxis
    low, high = axes.get_xlim()
    shown = [(at, label) for at, label in _TIMES if low <= at <= high]
    axis.set_major_locator(FixedLocator([at for at, _ in shown]))
    axis.set_major_formatter(FixedFormatter([label for _, label in shown]))
    axis.set_minor_locator(NullLocator())


def _inline(svg: str, prefix: str, title: str) -> str:
    """Return an SVG document as an element of the page, with unique IDs, the page's colours, and a title."""
    body = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    body = re.sub(r"<[^>]*>", lambda tag: _own(tag[0], prefix), body)
    box = re.search(r'viewBox="([^"]+)"', body)
    assert box is not None  # every figure that is saved has one
    head = f'<svg viewBox="{box[1]}" role="img" aria-label="{escape(title)}">'
    return head + body[body.index(">") + 1 :].strip()


def _own(tag: str, prefix: str) -> str:
    """Return an SVG tag with `prefix` before all IDs, and with the colours of the page."""
    tag = re.sub(r'\bid="', f'id="{prefix}', tag)
    tag = re.sub(r'(?:xlink:)?href="#', f'href="#{prefix}', tag).replace("url(#", f"url(#{prefix}")
    return re.sub(r"#[0-9a-f]{6}\b", lambda colour: VARIABLES.get(colour[0], colour[0]), tag)
