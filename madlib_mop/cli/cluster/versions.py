"""Run at each host of a cluster in the library's interpreter there: ``python -I -m madlib_mop.cli.cluster.versions``.

Prints one JSON object: the library's version, and those of its dependencies, or their import errors.
"""

import json

import madlib_mop
from madlib_mop.cli.doctor.probe import modules

if __name__ == "__main__":
    print(json.dumps({"version": madlib_mop.__version__, "modules": modules()}))
