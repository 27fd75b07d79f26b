"""The plan of a run: the arguments of a call, checked before any work starts."""
