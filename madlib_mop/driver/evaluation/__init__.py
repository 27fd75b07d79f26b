"""Metrics of a run's models: evaluations of shards, their sums as figures of all rows, and early stopping by them."""
