"""`madlib-mop watch`: one run in a terminal, with keys that steer it, as lines or JSON elsewhere; `madlib-mop drift`."""
