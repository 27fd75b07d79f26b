"""What a trainer holds in memory, in NumPy only: shards, and states as bytes."""
