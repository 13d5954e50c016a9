"""preflight: does this machine reduce rightly, and what is it? Phases that each run in a process of their own, with a time limit.

phases.py is the table; runner.py runs it; child.py is one process as the parent sees it, inside.py what runs in it; result.py what comes
out. The other files hold what phases ask. Invariant: no phase can hang the caller, and none can take another's answer away.
"""
