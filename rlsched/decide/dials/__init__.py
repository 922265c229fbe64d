"""Dials: numbers, such as the price of GPU time, that adjust a rule while it runs; updated every ten minutes.

A rule combines the dials with its settings. If all dials are 0, only the settings determine the decisions.
"""
