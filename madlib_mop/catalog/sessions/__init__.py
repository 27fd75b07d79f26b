"""Sessions at the server: logging in, settings, failed logins, and sessions that hold a lock."""
