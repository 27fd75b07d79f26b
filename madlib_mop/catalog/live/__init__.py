"""What people who watch runs see of the record, read with their own rights; used by the live page and ``watch``.

Row-level security decides what there is: a run that the role may not see is like one that does not exist.
"""
