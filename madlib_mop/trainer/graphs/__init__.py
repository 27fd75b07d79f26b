"""Computation in TensorFlow: compiled models, the loops over mini-batches, metrics and features."""
