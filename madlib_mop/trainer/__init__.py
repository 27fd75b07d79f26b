"""The trainer: the process with Keras, one for each worker backend; ``python -I -m madlib_mop.trainer``."""
