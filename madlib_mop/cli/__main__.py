"""``python -m madlib_mop.cli``: the command line without a console script on the PATH."""

from madlib_mop.cli import main

main()
