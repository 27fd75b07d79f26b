"""Models come in: files of Keras models and of weights, read by rules before anything else sees them."""
