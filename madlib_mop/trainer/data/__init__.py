"""A trainer's data in memory, with NumPy only: shards, and states as bytes."""
