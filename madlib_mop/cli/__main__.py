"""``python -m madlib_mop.cli``: the command line without a console script on the PATH."""

from madlib_mop.cli import main

if __name__ == "__main__":  # the process that draws the figures of the live page imports this module
    main()
