"""Dials: a few numbers that price the choices of a rule, updated every ten minutes.

A rule combines the dials with its settings. If all dials are 0, only the settings determine the decisions.
"""
