"""Locations of segments, and sessions that work for one; called by the driver."""
