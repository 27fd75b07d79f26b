"""madlib_mop: model hopper parallelism inside PostgreSQL. Importing this package imports nothing else."""

__version__ = "1.1.0"
