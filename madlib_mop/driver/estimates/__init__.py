"""What a run will cost, before it begins: its visits, time, memory and disk, and what limits it."""
