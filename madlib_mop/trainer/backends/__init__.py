"""The backends of Keras: all that depends on which of TensorFlow, JAX and PyTorch computes; one package each."""
