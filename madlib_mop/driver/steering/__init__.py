"""Changes of a run's models during the run, and the controller that decides on them."""
