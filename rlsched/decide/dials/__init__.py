"""Dials: numbers that adjust a rule while it runs, such as the price of GPU time; set every ten minutes.

A rule combines the dials with its settings. If all dials are 0, only the settings determine the decisions.
"""
