"""Proofs by exhaustion: what can be reached, what differs, since when. Loaded by reach, diff, history, bisect and the pytest plug-in."""
