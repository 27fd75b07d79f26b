"""Changes of a run's models: who decides on them, the checks, and the place that writes and applies them. Early
stopping and model averaging write their own rows."""
