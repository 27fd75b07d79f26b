"""Compile and fit parameters: texts in, checked dataclasses out; no TensorFlow."""
