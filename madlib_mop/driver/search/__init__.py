"""The search of a run: what it decides, how that is recorded, and how the run's models change by it."""
