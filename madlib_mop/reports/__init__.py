"""Reports of runs: facts read with the viewer's rights, figures, one HTML page; used by the driver and the commands."""
