-- The help forms of the functions above: f() and f('usage'). Where 'usage' could be the name of a table or server, f() alone.
-- madlib_mop/calls/sql_functions.py makes them. An update of the extension replaces them.

@HELP@
