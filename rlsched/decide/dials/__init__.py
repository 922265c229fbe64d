"""Dials: a few numbers that price what a rule decides, set anew every ten minutes.

A rule reads them beside its settings; all at 0, it decides as its settings say.
"""
