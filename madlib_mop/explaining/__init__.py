"""Why a model predicts what it does: Shapley values of a row, and the importance of columns; pure NumPy."""
