"""`madlib-mop watch`: one run in a terminal, with keys that steer it, or as lines or JSON; `madlib-mop drift`."""
