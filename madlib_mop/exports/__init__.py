"""Exported models: their files, their signature and their card. Pure: no session, no TensorFlow."""
