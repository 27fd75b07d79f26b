"""Metrics of a run's models: evaluations of shards, metrics of all rows from their sums, and early stopping."""
