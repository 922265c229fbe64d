"""Forecasts of job starts and ends: simulated futures, corrected by the outcomes of earlier forecasts."""
