"""The page of `rlsched trace describe --html`: complete, self-contained, and clear about missing data."""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlsched.cli.main import run
from rlsched.cluster.spec import ClusterSpec
from rlsched.installing import install_command
from rlsched.workload.describe import describe
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace

pytest.importorskip("matplotlib")
from rlsched.report.page import page, sections, write_page

TITLES = (
    "Clusters",
    "Job sizes and GPU-time by size",
    "Run times",
    "Users",
    "Submissions by hour and weekday",
    "Utilisation by hour and weekday",
    "Offered load against capacity over time",
    "Waiting by size",
    "Repeated jobs",
    "Failed work",
    "Predicted run times",
)
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Reader(HTMLParser):
    """Checks that elements nest, and collects the contents of the page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> is out of place"

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text.setdefault(self.open[-1], []).append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def html_of(trace: Trace, spec: ClusterSpec | None = None, origin: datetime | None = None) -> str:
    report = describe(trace, spec, origin)
    return page(report, sections(report))


def make_full_trace() -> tuple[Trace, ClusterSpec]:
    """Synthetic jobs with every column that a section needs."""
    drawn, spec = synthesize("philly", 300, 0.9, 32, predictability="causal")
    rng = np.random.default_rng(0)
    columns = {field: getattr(drawn, field) for field in ("user", "job_name", "status", "predicted_s")}
    return Trace.from_columns(
        name="full",
        submit_s=drawn.submit_s,
        duration_s=drawn.duration_s,
        num_gpus=drawn.num_gpus,
        vc=rng.choice(["a", "b"], len(drawn)),
        extra={"queue_s": rng.exponential(600, len(drawn))},
        **columns,
    ), spec


def make_bare_trace() -> Trace:
    """Three jobs with only the required columns."""
    return Trace.from_columns(name="bare", submit_s=[0, 60, 7200], duration_s=[60, 9, 60], num_gpus=[1, 1, 8])


@pytest.fixture(scope="module")
def full() -> str:
    return html_of(*make_full_trace())


def test_every_section_has_a_plot(full: str) -> None:
    reader = read(full)
    assert tuple(reader.text["h2"]) == TITLES
    assert "Without data" not in full
    assert full.count("<svg ") == full.count("<figcaption>") == 15
    for one in re.findall(r"<section.*?</section>", full, re.DOTALL)[:-1]:
        assert "<svg " in one
        assert "<table>" in one


def test_page_loads_nothing_from_the_network(full: str) -> None:
    reader = read(full)
    for tag, attributes in reader.tags:
        assert tag not in ("script", "link", "iframe", "img", "object", "embed")
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href", "srcset", "data"):
                assert (value or "").startswith("#"), f"<{tag} {name}={value!r}>"
    assert "http:" not in full
    assert "https:" not in full
    assert "@import" not in full
    assert re.findall(r"url\((?!#)", full) == []
    assert "default-src 'none'" in full


def test_ids_are_unique_and_every_reference_has_a_target(full: str) -> None:
    reader = read(full)
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = {value[1:] for _, attributes in reader.tags if (value := attributes.get("href"))}
    named |= set(re.findall(r"url\(#([^)]+)\)", full))
    assert named <= set(ids)


def test_plots_have_text_alternatives_and_the_colours_of_the_page(full: str) -> None:
    reader = read(full)
    plots = [attributes for tag, attributes in reader.tags if tag == "svg"]
    assert all(plot.get("role") == "img" and plot.get("aria-label") for plot in plots)
    assert "Monday" not in full
    assert "day 1" in reader.text["text"]
    drawn = "".join(re.findall(r"<svg.*?</svg>", full, re.DOTALL))
    assert re.findall(r":\s*#[0-9a-f]{3,6}\b", drawn) == []
    defined = set(re.findall(r"(--[\w-]+):", full))
    assert set(re.findall(r"var\((--[\w-]+)\)", full)) <= defined
    assert "prefers-color-scheme: dark" in full


def test_missing_columns_of_a_trace_are_named() -> None:
    text = html_of(make_bare_trace())
    assert tuple(read(text).text["h2"]) == TITLES
    parts = dict(zip(TITLES, re.findall(r"<section.*?</section>", text, re.DOTALL), strict=True))
    for title, column in (
        ("Users", "user"),
        ("Utilisation by hour and weekday", "queue_s"),
        ("Waiting by size", "queue_s"),
        ("Repeated jobs", "name"),
        ("Failed work", "status"),
        ("Predicted run times", "predicted_duration"),
    ):
        assert f"That would need the column {column}." in parts[title]
        assert 'class="missing"' in parts[title]
        assert "<svg" not in parts[title]
    assert "No cluster was given (--cluster)" in parts["Clusters"]
    assert "capacity is not known" in parts["Offered load against capacity over time"]
    assert "relative to the trace&#x27;s origin" in parts["Submissions by hour and weekday"]
    assert text.count('<a href="#waiting">') == 2


def test_known_origin_gives_weekdays() -> None:
    text = html_of(make_bare_trace(), origin=datetime(2024, 4, 1, 8))
    assert "Monday" in text
    assert "second 0 is 2024-04-01T08:00:00" in text


def test_names_cannot_break_the_page() -> None:
    trace = Trace.from_columns(
        name="<b>bold</b>",
        submit_s=[0, 1, 2, 3],
        duration_s=[1, 2, 3, 4],
        num_gpus=[1, 1, 2, 0.5],
        vc=["<script>alert(1)</script>", "中文", '$x_{1$ id="y" #010101', "a\nb\x01" * 200],
        user=["<i>", "", "&amp;", "c"],
        status=["<u>", "Pass", "失败", "FAILED by 1"],
    )
    text = html_of(trace)
    reader = read(text)
    assert not {"script", "b", "i", "u"} & {tag for tag, _ in reader.tags}
    assert "Workload of <b>bold</b>" in reader.text["h1"]
    assert '$x_{1$ id="y" #…' in reader.text["text"]
    assert "中文" in reader.text["text"]


@pytest.mark.parametrize(
    ("submit_s", "duration_s", "num_gpus", "queue_s"),
    [
        ([5], [0], [0], [0]),
        ([5, 5], [0, 0], [0, 0], [0, 0]),
        ([0, 1e11], [3, 10], [1, 1], [0, 0]),
        ([0, 1e-3], [3, 1e12], [1, 1e9], [0, 1e15]),
    ],
)
def test_unusual_traces_have_a_page(
    submit_s: list[float], duration_s: list[float], num_gpus: list[float], queue_s: list[float]
) -> None:
    trace = Trace.from_columns(
        name="odd", submit_s=submit_s, duration_s=duration_s, num_gpus=num_gpus, extra={"queue_s": queue_s}
    )
    assert tuple(read(html_of(trace)).text["h2"]) == TITLES


@pytest.mark.slow
def test_same_trace_gives_the_same_page(full: str) -> None:
    assert html_of(*make_full_trace()) == full


# ---- the command ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_command_writes_the_page_and_the_same_numbers_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, spec = make_full_trace()
    trace.write(tmp_path / "t.csv.gz")
    (tmp_path / "c.toml").write_text(spec.to_toml())
    where = [str(tmp_path / "t.csv.gz"), "--cluster", str(tmp_path / "c.toml")]
    out = tmp_path / "r.html"
    assert run(["trace", "describe", *where, "--html", str(out), "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == f"{out}: 11 sections\n"
    report: dict[str, Any] = json.loads(said.out)
    waiting = report["waiting"]
    assert f"{100 * waiting['waited_frac']:.1f} % of the jobs waited" in out.read_text(encoding="utf-8")
    assert report["over_time"]["load_frac"]
    assert run(["trace", "describe", *where]) == 0
    assert "Waiting of 300 jobs" in capsys.readouterr().out


def test_missing_matplotlib_names_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in [name for name in sys.modules if name.startswith("rlsched.report.")]:
        monkeypatch.delitem(sys.modules, name)
    assert run(["trace", "describe", str(tmp_path / "t.csv"), "--html", str(tmp_path / "r.html")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert install_command("report") in said


def test_unwritable_path_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_bare_trace().write(tmp_path / "t.csv")
    out = tmp_path / "nowhere" / "r.html"
    assert run(["trace", "describe", str(tmp_path / "t.csv"), "--html", str(out)]) == 2
    said = capsys.readouterr().err
    assert said == f"error: {out}: cannot write this page: No such file or directory\n"


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.parametrize("name", ["philly", "alibaba_openb2023"])
def test_real_traces_have_a_page(name: str, shared_data: Path, tmp_path: Path) -> None:
    trace = Trace.read(shared_data / "traces" / f"{name}.csv.gz")
    spec = ClusterSpec.read(shared_data / "traces" / f"{name}.cluster.toml")
    made = write_page(describe(trace, spec), tmp_path / "r.html")
    lacking = {one.title for one in made if one.lacks}
    assert "Waiting by size" in lacking
    assert ("Failed work" in lacking) is (name != "alibaba_openb2023")
    assert tuple(read((tmp_path / "r.html").read_text(encoding="utf-8")).text["h2"]) == TITLES
