"""The help texts, a file for each family of functions, and the lists in them; read by ``driver/commands/help.py``."""
