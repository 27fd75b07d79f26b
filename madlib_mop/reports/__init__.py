"""Reports of runs: facts read with the viewer's rights, figures, and one HTML page; used by the driver and the command line."""
