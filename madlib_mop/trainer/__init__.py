"""The trainer: the process with Keras and its backend, one for each worker backend; ``python -I -m madlib_mop.trainer``."""
