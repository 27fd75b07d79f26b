"""The plan of a run: everything that a call asks for, checked before any work starts."""
