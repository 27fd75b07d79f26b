"""The search of a run: its decisions, their record, and the changes of the run's models."""
