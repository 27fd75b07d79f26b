"""A run under way: its workers, the loop over its tasks, retries, and its end."""
