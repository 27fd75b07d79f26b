"""Reads the facts of runs with the viewer's rights; pages, trackers and the client have no queries of their own."""
