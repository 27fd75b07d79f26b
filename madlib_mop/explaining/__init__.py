"""Why a model predicts what it does: Shapley values of a row, importance of columns, partial dependence; pure NumPy."""
