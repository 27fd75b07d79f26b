"""Changes of a run's models while the run goes on, and who decides on them."""
