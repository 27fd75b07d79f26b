"""The trainer: the process beside a worker backend in which TensorFlow lives; ``python -I -m madlib_mop.trainer``."""
