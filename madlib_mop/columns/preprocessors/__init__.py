"""A specification with what was fitted to the training rows: one JSON document, named by its digest."""
