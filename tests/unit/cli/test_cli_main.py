"""The command line turns errors into one line on stderr and an exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest

from rlsched.cli import main as cli_main
from rlsched.cli.main import run
from rlsched.cli.points import own_point
from rlsched.errors import BrokerUnavailableError, InputError, JournalError, WireError
from rlsched.installing import install_command


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Install one verb, `fail`, that calls the given action."""

    def install(action: Callable[[], object]) -> None:
        class Point(EntryPoint):
            def load(self) -> click.Command:
                return click.Command("fail", callback=action)

        points = {"fail": Point(name="fail", value="tests:fail", group="rlsched.commands")}
        monkeypatch.setattr(cli_main, "points", lambda: points)

    return install


def raising(error: BaseException) -> Callable[[], object]:
    def action() -> object:
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("t.csv: row 3"), 2, "error: t.csv: row 3\n"),
        (InputError("two\n  lines"), 2, "error: two lines\n"),
        (BrokerUnavailableError("no answer"), 2, "error: no answer\n"),
        (WireError("malformed message"), 2, "error: malformed message\n"),
        (JournalError("disk full"), 1, "error: disk full\n"),
        (click.UsageError("no such thing"), 2, "error: no such thing (see: rlsched fail --help)\n"),
        (
            ModuleNotFoundError("No module named 'numba'", name="numba"),
            2,
            f"error: fail needs numba, which is not installed; run: {install_command('broker')}\n",
        ),
        (KeyboardInterrupt(), 130, "\n"),
    ],
)
def test_errors_become_one_line_and_a_code(
    verb: Callable[[Callable[[], object]], None],
    error: BaseException,
    code: int,
    line: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    verb(raising(error))
    assert run(["fail"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err == line


def test_unexpected_error_keeps_its_traceback(verb: Callable[[Callable[[], object]], None]) -> None:
    verb(raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        run(["fail"])
    verb(raising(ModuleNotFoundError("No module named 'typo'", name="typo")))
    with pytest.raises(ModuleNotFoundError):
        run(["fail"])


def test_verb_can_have_its_own_exit_code(verb: Callable[[Callable[[], object]], None]) -> None:
    verb(lambda: 7)
    assert run(["fail"]) == 7
    verb(lambda: click.get_current_context().exit(3))
    assert run(["fail"]) == 3
    verb(lambda: None)
    assert run(["fail"]) == 0


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("zmq", f"fail needs zmq, which is not installed; run: {install_command('broker')}"),
        ("rlsched.cli.gone", "verb 'fail' is not part of this installation"),
    ],
)
def test_verb_that_cannot_be_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: str, message: str
) -> None:
    class Point(EntryPoint):
        def load(self) -> object:
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    points = {"fail": Point(name="fail", value="tests:fail", group="rlsched.commands")}
    monkeypatch.setattr(cli_main, "points", lambda: points)
    assert run(["fail"]) != 0
    assert message in capsys.readouterr().err
    assert run(["--help"]) == 0


def test_unknown_verb_and_unknown_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["frobnicate"]) == 2
    assert "frobnicate" in capsys.readouterr().err
    assert run(["trace", "synth", "--lik", "philly"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: No such option")
    assert err.endswith("(see: rlsched trace synth --help)\n")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("rlsched 0.")


def test_trace_verbs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, cluster, copy = tmp_path / "t.csv.gz", tmp_path / "c.toml", tmp_path / "t.parquet"
    assert (
        run(
            [
                "trace",
                "synth",
                "--like",
                "itp",
                "--jobs",
                "200",
                "--gpus",
                "32",
                "--seed",
                "4",
                "-o",
                str(trace),
                "--cluster-out",
                str(cluster),
                "--predictability",
                "causal",
            ]
        )
        == 0
    )
    assert "200 itp-like jobs" in capsys.readouterr().out
    assert run(["trace", "convert", str(trace), str(copy)]) == 0
    assert capsys.readouterr().out == f"{copy}: 200 jobs\n"
    assert run(["trace", "describe", str(copy), "--cluster", str(cluster), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["cluster"]["load_frac"] == pytest.approx(0.9, abs=0.01)
    assert run(["trace", "describe", str(copy), "--cluster", str(cluster), "--nodes", "2"]) == 0
    page = capsys.readouterr().out
    assert "2 nodes, 16 GPUs" in page
    assert "Jobs by size" in page
    assert run(["trace", "describe", str(trace), "--cluster", str(cluster), "--load", "0.3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cluster"]["nodes"] == 12


@pytest.mark.parametrize(
    "args",
    [
        ["trace", "describe", "none.csv"],
        ["trace", "describe", "none.csv", "--nodes", "3"],
        ["trace", "describe", "none.csv", "--cluster", "c", "--nodes", "3", "--load", "1"],
        ["trace", "convert", "none.csv", "out.csv"],
        ["trace", "synth", "--like", "google", "-o", "t.csv"],
        ["trace", "synth", "--gpus", "12", "-o", "t.csv"],
        ["trace", "synth", "--predictability", "much", "-o", "t.csv"],
        ["trace", "synth", "--jobs", "10", "-o", "t.xlsx"],
        ["trace", "synth", "--jobs", "10", "-o", "nowhere/t.csv"],
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_closed_pipe_is_no_crash(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    assert run(["trace", "synth", "--jobs", "50", "-o", str(trace)]) == 0
    child = subprocess.Popen(
        [sys.executable, "-m", "rlsched.cli.main", "trace", "describe", str(trace)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == ""
    child.stderr.close()
    assert child.wait(timeout=60) == 1


def test_control_c_prints_no_traceback() -> None:
    code = (
        "import click, os, signal\nfrom rlsched.cli import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a parent process may ignore it
        "@main.cli.command('hang')\ndef hang(): os.kill(os.getpid(), signal.SIGINT); signal.pause()\n"
        "main.VerbGroup.get_command = lambda self, ctx, name: hang\n"
        "import sys; sys.argv = ['rlsched', 'hang']; main.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_verb_of_this_package_is_found_without_scanning_all_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> dict[str, EntryPoint]:
        raise AssertionError("all packages were asked")

    ours = {name: point.value for name, point in cli_main.points().items() if point.dist is not None}
    assert {"submit", "broker", "node"} <= set(ours)
    assert {verb: own_point(verb) for verb in ours} == ours
    monkeypatch.setattr(cli_main, "points", asked)
    assert run(["submit", "--help"]) == 0
    assert own_point("frobnicate") == ""
