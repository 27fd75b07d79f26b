"""Runs in simulated time: estimates of runs on one server, forecasts on many segments, comparisons of schedules."""
