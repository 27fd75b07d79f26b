"""Use of trained models in the caller's own session: reading them, evaluating them, predicting with them."""
