"""Forecasts of starts and ends of jobs: simulated futures, corrected by the outcomes of earlier forecasts."""
