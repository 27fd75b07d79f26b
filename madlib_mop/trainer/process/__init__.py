"""The trainer as a process: start, sandbox, failures and end."""
