"""``python -m madlib_mop.cli``: the command line where no console script is on the PATH."""

from madlib_mop.cli import main

main()
