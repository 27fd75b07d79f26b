"""The methods of search: each module is one, and has its name. `by_name` finds them."""
