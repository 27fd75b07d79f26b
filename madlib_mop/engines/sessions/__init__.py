"""The sessions of a segment: how they log in, and how the driver talks to them."""
