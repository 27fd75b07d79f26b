"""How sure a model is: scores of held-out rows, calibrated probabilities, and measures of predictions; pure NumPy."""
