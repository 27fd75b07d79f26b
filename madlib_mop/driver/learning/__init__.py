"""From a table to a registered model in one call."""
