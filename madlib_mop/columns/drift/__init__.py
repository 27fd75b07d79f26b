"""Drift: how rows of today differ from the training rows; pure, without a session."""
