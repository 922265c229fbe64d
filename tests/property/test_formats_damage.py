"""Damaged publishers' files: rows are kept or skipped by name, or one clear line reports the reason."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.errors import RlschedError
from rlsched.workload.formats.frame import Conversion, Request
from rlsched.workload.formats.registry import convert_original
from tests.support.sim.samples import WHOLE, Sample

DAMAGE = st.lists(
    st.tuples(
        st.sampled_from(("cut", "drop", "put", "twice")),
        st.floats(0, 1),
        st.sampled_from(
            (b"", b"\n", b",", b"|", b'"', b"-", b"9" * 400, b"1e999", b"\0", b"\xff", b"{", b"]")
        ),
    ),
    min_size=1,
    max_size=6,
)


def damage(data: bytes, changes: list[tuple[str, float, bytes]]) -> bytes:
    """The file after some bytes were cut off, dropped, inserted, or repeated."""
    for kind, where, put in changes:
        at = int(where * len(data))
        if kind == "cut":
            data = data[: max(at, len(data) // 2)]
        elif kind == "drop":
            data = data[:at] + data[at + 7 :]
        elif kind == "twice":
            data = data[:at] + data[max(0, at - 40) :]
        else:
            data = data[:at] + put + data[at:]
    return data


def attempt(name: str, request: Request) -> tuple[Conversion | None, RlschedError]:
    """The converted file, or the error that refuses it; any other error fails the test."""
    try:
        return convert_original(name, request), RlschedError()
    except RlschedError as error:
        return None, error


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(WHOLE), DAMAGE)
def test_rows_add_up_after_any_damage(sample: Sample, changes: list[tuple[str, float, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for file in sample.path.parent.iterdir():
            if file.is_file():
                (Path(folder) / file.name).write_bytes(damage(file.read_bytes(), changes))
        named = sample.name in ("helios", "philly", "pai", "openb")
        request = Request(Path(folder) / sample.path.name, cluster_name="c" if named else None)
        conversion, error = attempt(sample.name, request)
        if conversion is None:
            assert "\n" not in str(error)
            assert error.exit_code == 2
            return
        assert conversion.accounts[0].kept == len(conversion.trace)
        for account in conversion.accounts:
            assert account.rows == account.kept + sum(tally.count for tally in account.skipped.values())
        assert np.isfinite(conversion.trace.duration_s).all()
        assert len(set(conversion.trace.job_id.tolist())) == len(conversion.trace)
