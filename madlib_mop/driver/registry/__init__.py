"""The registry: versions of models, copied from output tables, and their deployment."""
