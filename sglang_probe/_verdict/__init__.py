"""Verdicts: two arms of fresh processes, and whether one is faster, as a word that may be UNDECIDED.

What people have becomes an Arm (arm.py; reading.py, table.py, measured.py), each process of it one number (within.py), two arms their
differences and an exact test (ranks.py); judge.py puts what time and shape tell beside it (drift.py, shape.py) and says the word
(words.py, told.py), with the runs that would settle it (runs.py). The answer: verdict.py, nouns.py. A growing experiment: stopping.py.
"""
