"""The caller's session, the arguments and settings of a call, and the session of the record."""
