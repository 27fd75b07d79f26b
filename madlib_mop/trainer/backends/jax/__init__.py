"""JAX as the backend of Keras."""
