"""The sessions of a segment: their logins, and the driver's communication with them."""
