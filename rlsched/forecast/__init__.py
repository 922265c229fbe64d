"""Forecasts of job starts and ends, from simulations that are corrected by the outcomes of past forecasts."""
