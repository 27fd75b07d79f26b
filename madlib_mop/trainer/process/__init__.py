"""The trainer as a process: how it starts, what it gives up, how it fails and ends."""
