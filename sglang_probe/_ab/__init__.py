"""ab and noise: experiments with fresh processes, interleaved, that end when it is known which of two is faster.

ab.py checks and begins; experiment.py runs sides (commands.py behind process.py and guard.py, targets.py by the bench) in the order of
order.py, asks rule.py when to look, and keeps runs in journal.py; compare.py says whether the arms ran alike; judged.py answers.
"""
