"""The trainer: the process with TensorFlow, one for each worker backend; ``python -I -m madlib_mop.trainer``."""
