"""Weights come in: files are opened in the sandbox, and matched with the layers of a model."""
