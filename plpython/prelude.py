import sys
if "@LIBRARY@/backend" not in sys.path:
    sys.path.insert(0, "@LIBRARY@/backend")
