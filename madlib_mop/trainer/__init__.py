"""The trainer: the one process in which TensorFlow lives, beside a worker backend; started as ``python -I -m madlib_mop.trainer``."""
