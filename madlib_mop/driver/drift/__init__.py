"""The command drift: rows of today and a model's predictions of them, against the training rows or other rows."""
