"""Dials: a few numbers that price the choices of a rule, set again every ten minutes.

A rule reads them together with its settings. With all dials at 0 it decides by its settings only.
"""
