"""Keras' backend TensorFlow: compiled loops, fused models, GPUs, files; the one package that imports TensorFlow."""
