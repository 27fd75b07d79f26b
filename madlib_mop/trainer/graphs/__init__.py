"""Models and what they compute: compiled models, their variables, features and predictions."""
