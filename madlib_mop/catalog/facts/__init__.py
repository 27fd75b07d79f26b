"""The facts of a run, as frozen dataclasses: one set for report, live page, ``watch``, trackers and client.

Each module has the dataclasses of one subject and what reads them, with the viewer's rights; what is derived of them is
computed there too. `run` reads all facts of a run in one snapshot. Pages, trackers and the client only show them, and
have no queries of their own. Durations and offsets are seconds (``_s``); offsets count from the run's start.
"""
