"""Past experience of a search: the earlier runs that it learns from, and their configurations in its space."""
