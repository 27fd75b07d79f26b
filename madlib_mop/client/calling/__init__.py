"""Calls of SQL functions: sessions, statements, and errors of the server as those of `madlib_mop.errors`."""
