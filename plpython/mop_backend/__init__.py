"""Code that runs inside a PostgreSQL backend: standard library only, shared with the library's processes."""

__version__ = "1.1.0"
