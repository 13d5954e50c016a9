"""Measurement files: what a bench measured, every raw sample and everything it was measured on, in a file that outlives us.

What a file looks like: format.py. Written by writer.py, read by reader.py; the nouns are measurement.py's.
"""
