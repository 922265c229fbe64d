"""A cluster description: errors are one line that names the group."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.errors import ClusterSpecError

TOML = 'name = "c"\n\n[[nodes]]\ncount = 2\ngpus = 4\n\n[[nodes]]\ngpus = 4\nvc = "{vc}"\n'


@pytest.mark.parametrize("vc", ["", "shared"])
def test_vc_without_a_separate_name_is_refused(vc: str, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(TOML.format(vc=vc))
    with pytest.raises(ClusterSpecError) as caught:
        ClusterSpec.read(path)
    assert str(caught.value) == (
        f"{path}: nodes[1]: vc {vc!r} cannot be the name of a virtual cluster; "
        "leave vc out for nodes that serve every one"
    )


def test_description_is_read_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('preemptible = "all"\nmax_retries = 2\n' + TOML.format(vc="physics"))
    spec = ClusterSpec.read(path)
    assert (spec.preemptible, spec.max_retries) == ("all", 2)
    assert [(node.name, node.gpus, node.vc) for node in spec.expand()] == [
        ("n0", 4, None),
        ("n1", 4, None),
        ("n2", 4, "physics"),
    ]
    again = tmp_path / "again.toml"
    again.write_text(spec.to_toml())
    assert ClusterSpec.read(again) == spec
