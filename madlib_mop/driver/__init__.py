"""The driver: validates a call, plans a run, runs its visits, recovers, writes the output tables."""
