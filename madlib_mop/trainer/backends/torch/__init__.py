"""PyTorch as the backend of Keras."""
