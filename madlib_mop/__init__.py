"""madlib_mop: model hopper parallelism inside PostgreSQL. Importing this package imports nothing else."""

__version__ = "0.1.0"
