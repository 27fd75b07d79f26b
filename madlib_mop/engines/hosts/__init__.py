"""Segments at other PostgreSQL servers: logins, sessions, tables and the relay there."""
