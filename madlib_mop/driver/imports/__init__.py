"""Models come in: files of Keras models and of weights, read in a trainer, and stored."""
