"""Runs in simulated time: forecasts of runs on many segments, and comparisons of schedules; no run uses it."""
