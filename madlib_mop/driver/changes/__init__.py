"""Changes of a run's models: who decides on them, the checks, and the one place that writes and applies them."""
