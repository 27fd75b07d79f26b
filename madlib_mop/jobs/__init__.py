"""Jobs: calls that run without their caller. `working.py` is the process that runs them (``madlib-mop work``)."""
