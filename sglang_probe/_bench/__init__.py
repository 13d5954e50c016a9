"""The bench: what to measure (plan), how a rank takes samples (sample), and the runner that keeps them (runner). Called by bench.py.

Each process set is fresh; in it, all of the plan is measured once, in an order of its own.
"""
