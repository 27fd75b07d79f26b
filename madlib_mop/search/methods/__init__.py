"""The methods of search, one module each; methods with Optuna's samplers share one. `by_name` finds them."""
