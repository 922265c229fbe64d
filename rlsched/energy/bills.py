"""Units of prices and carbon intensities, which convert an amount of energy to its cost or its carbon."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

J_PER_MWH: Final = 3.6e9
MG_J_PER_KG_KWH: Final = 3.6e9
"""Number of J x g/kWh in 1 kg: 3.6e6 J in a kWh x 1,000 g in a kg."""
BillKind = Literal["cost", "carbon"]
UNITS: Final[Mapping[str, float]] = MappingProxyType({"cost": J_PER_MWH, "carbon": MG_J_PER_KG_KWH})
"""Divisor of (energy in J) x (price or carbon intensity), by kind of bill.

The results are in the currency of the price, or in kg CO2e.
"""


class PriceUnit(NamedTuple):
    """Meaning of a series of prices.

    Attributes:
        kind: `cost` for a price per MWh, `carbon` for a carbon intensity in g CO2e per kWh.
        currency: Currency of the price; "" for a carbon intensity.
        pue: Power usage effectiveness (facility energy / hardware energy), a factor of cost and carbon.
    """

    kind: BillKind
    currency: str = ""
    pue: float = 1.0
