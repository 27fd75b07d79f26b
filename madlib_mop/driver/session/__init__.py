"""The caller's session as the driver sees it, the arguments and settings of a call, and the session of the record."""
