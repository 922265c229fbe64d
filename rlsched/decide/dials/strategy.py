"""`Strategy`: a linear map or a small network that computes the dials from columns of an observation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.dials import CLIPPED, NETWORK, PRICE_DIALS, DialArrays, no_dials
from rlsched.decide.dials.observing import NAMES, PRICE_COLUMNS
from rlsched.decide.dials.turning import RANGES
from rlsched.decide.drift import Familiar
from rlsched.decide.own import DEFAULT, is_inline
from rlsched.errors import InputError

STRATEGY_FILE: Final = "policy.json"
"""Name of the strategy in the folder of a trained policy."""
NUM_COLUMNS = len(NAMES)
NUM_DIALS = len(RANGES)


class Strategy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A strategy file (JSON).

    Attributes:
        columns: Input columns, in the order of the weights: the first columns of `observing.NAMES`.
        dials: Output dials, in the order of the rows of the last layer: the first dials of `RANGES`. The
            other dials stay at 0.
        layers: One matrix for a linear strategy, three for a network; the last column of each matrix is the
            bias. The activation of hidden layers is tanh.
        output: Activation of the last layer: `tanh`, or `clip` to -1 to 1.
        familiar: Ranges of the columns in training; None: the file has no ranges, so drift is not detected.
    """

    columns: tuple[str, ...]
    dials: tuple[str, ...]
    layers: tuple[tuple[tuple[float, ...], ...], ...]
    output: Literal["tanh", "clip"] = "tanh"
    familiar: Familiar | None = None

    @classmethod
    def from_layers(cls, *layers: NDArray[np.float64], output: Literal["tanh", "clip"] = "tanh") -> Strategy:
        """Return a strategy with these matrices, for the first columns of `NAMES` and dials of `RANGES`."""
        rows = tuple(tuple(tuple(float(x) for x in row) for row in layer) for layer in layers)
        columns, dials = layers[0].shape[1] - 1, layers[-1].shape[0]
        return cls(columns=NAMES[:columns], dials=tuple(RANGES)[:dials], layers=rows, output=output)

    @classmethod
    def read(cls, path: str | Path) -> Strategy:
        """Read a strategy from its file.

        Raises:
            InputError: the file cannot be read, or does not fit this version.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise InputError(f"{path}: cannot read this strategy: {error.strerror}") from None
        return cls._decoded(data, str(path))

    @classmethod
    def of_setting(cls, dials: str) -> Strategy:
        """Return the strategy of a policy's setting `dials`: a file's path, a file's text, or `default`.

        Raises:
            InputError: the strategy cannot be read, or does not fit this version.
        """
        if is_inline(dials):
            return cls._decoded(dials.encode(), "dials")
        return cls.read(default_checkpoint() / STRATEGY_FILE if dials == DEFAULT else dials)

    @classmethod
    def _decoded(cls, data: bytes, where: str) -> Strategy:
        try:
            made = msgspec.json.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise InputError(f"{where}: expected a strategy file (JSON), got: {error}") from None
        made.check(where)
        return made

    def check(self, where: str) -> None:
        """Check that the strategy fits this version of rlsched.

        Raises:
            InputError: the strategy uses columns or dials that this version does not have, the shapes of its
                matrices do not match, or a weight is not a finite number.
        """
        for words, mine, known in (("columns", self.columns, NAMES), ("dials", self.dials, tuple(RANGES))):
            if not mine or mine != known[: len(mine)]:
                odd = next((one for one in mine if one not in known), None)
                said = f"does not have {odd!r}" if odd else f"expects the first of its {len(known)}, in order"
                said = said if mine else f"expects at least one of its {len(known)}, got none"
                raise InputError(
                    f"{where}: {words}: this version {said}; train the strategy again with `rlsched train`"
                )
        if self.familiar is not None and (wrong := self.familiar.wrong()):
            raise InputError(f"{where}: familiar: {wrong}")
        if len(self.layers) not in (1, 3):
            raise InputError(f"{where}: layers: expected 1 or 3 matrices, got {len(self.layers)}")
        width = len(self.columns)
        for number, layer in enumerate(self.layers, start=1):
            if not layer or any(len(row) != width + 1 for row in layer):
                raise InputError(f"{where}: layers: matrix {number}: expected rows of {width + 1} weights")
            width = len(layer)
            if not np.isfinite(np.array(layer)).all():
                raise InputError(f"{where}: layers: matrix {number}: expected finite weights")
        if width != len(self.dials):
            raise InputError(f"{where}: layers: expected {len(self.dials)} outputs, got {width}")

    def write(self, path: Path) -> None:
        """Write the strategy file."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=0) + b"\n")

    @property
    def text(self) -> str:
        """The strategy file on one line; `of_setting` reads it."""
        return msgspec.json.encode(self).decode()

    @property
    def digest(self) -> str:
        """First 12 hexadecimal digits of the SHA-256 of the strategy."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:12]

    @property
    def matrices(self) -> list[NDArray[np.float64]]:
        """The matrices of `layers`, with weights of 0 added for columns and dials that the strategy lacks."""
        first, *others = (np.array(layer, np.float64) for layer in self.layers)
        missing = NUM_COLUMNS - len(self.columns)
        found = [np.insert(first, [len(self.columns)] * missing, 0.0, axis=1), *others]
        found[-1] = np.pad(found[-1], ((0, NUM_DIALS - len(self.dials)), (0, 0)))
        return found

    def without_prices(self) -> Strategy:
        """Return the strategy without the columns and dials that follow the price of electricity.

        The weights of these columns and dials are untrained if the strategy was trained without prices.
        """
        columns = [name not in PRICE_COLUMNS for name in self.columns]
        rows = [name not in PRICE_DIALS for name in self.dials]
        matrices = [np.array(layer) for layer in self.layers]
        matrices[0] = matrices[0][:, [*columns, True]]
        matrices[-1] = matrices[-1][rows]
        return Strategy.from_layers(*matrices, output=self.output)

    @property
    def follows_price(self) -> bool:
        """Whether the strategy sets dials that follow the price of electricity."""
        last = self.matrices[-1]
        return any(last[row].any() for row, name in enumerate(RANGES) if name in PRICE_DIALS)

    def arrays(self, partitions: int, *, only_modelled: bool = False) -> DialArrays:
        """Return arrays for kernels: the strategy's network, and all dials with the value 0.

        `partitions`: number of partitions. `only_modelled`: whether all dials except `PRICE_DIALS` stay at 0
        on a cluster without models of speed.
        """
        made = dial_arrays(partitions, CLIPPED if self.output == "clip" else NETWORK, self.matrices)
        made.only_modelled[0] = only_modelled
        return made


def default_checkpoint() -> Path:
    """Return the folder of the policy `ppo`: inside the installed package, or at the root of a checkout."""
    package = Path(str(files("rlsched")))
    packed = package / "_checkpoints" / "default"
    return packed if packed.is_dir() else package.parent / "checkpoints" / "default"


def dials_of(
    layers: Sequence[NDArray[np.float64]],
    seen: NDArray[np.floating],
    output: Literal["tanh", "clip"] = "tanh",
) -> NDArray[np.float64]:
    """Return the outputs of a strategy's network: D dials, -1 to 1, for each of N observations, (N, D).

    Args:
        layers: Matrices of the strategy (`Strategy.matrices`).
        seen: (N, F) observations.
        output: Activation of the last layer (`Strategy.output`); other layers have tanh.
    """
    moved = seen.astype(np.float64)
    for place, layer in enumerate(layers, 1):
        moved = moved @ layer[:, :-1].T + layer[:, -1]
        clips = output == "clip" and place == len(layers)
        moved = np.clip(moved, -1.0, 1.0) if clips else np.tanh(moved)
    return moved


def dial_arrays(partitions: int, controller: int, matrices: list[NDArray[np.float64]]) -> DialArrays:
    """Return arrays for kernels: dials with the value 0, and a network of 1 or 3 matrices.

    `controller`: source of the dials, such as NETWORK or CLIPPED (`rlsched.cluster.dials`).
    """
    more: dict[str, Any] = {}
    if len(matrices) == 3:
        more = {
            "layer1": matrices[0],
            "layer2": matrices[1],
            "scratch": np.zeros((2, max(matrices[0].shape[0], matrices[1].shape[0]))),
        }
    return no_dials(partitions)._replace(
        controller=np.array([controller], np.int64),
        seen=np.zeros((max(1, partitions), NUM_COLUMNS)),
        action=np.zeros(NUM_DIALS),
        output=matrices[-1],
        **more,
    )
