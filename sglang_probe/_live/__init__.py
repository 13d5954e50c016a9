"""Reading what workers recorded, from outside: top, dump, start and stop, agreement of ranks, exports.

find.py finds ring files, worker.py reads one after the other, worlds.py says whose ranks belong together, agree.py and compare.py
compare them, findings.py says what is odd; top.py and recording.py are what people get. Invariant: a worker is never disturbed: its
file is read by pread, and only its control word is ever written. Nothing here imports SGLang, torch or the hook.
"""
