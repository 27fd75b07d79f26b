"""The plan of a run: everything that a call requests, checked before any work starts."""
