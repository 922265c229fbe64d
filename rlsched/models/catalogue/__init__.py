"""The catalogue of workloads: how busy, hungry, sensitive and portable some fifty kinds of training are.

Every figure has a status and a source: `docs/explanation/catalogue.md`. `studies/models/make_catalogue.py`
makes them.
"""

from __future__ import annotations

from rlsched.models.catalogue.catalogue import Catalogue, load_catalogue

__all__ = ["Catalogue", "load_catalogue"]
