"""What a call of a path costs, from tables: measured by this code, printed by nccl-tests, or published. Used by step and bands.

    files.py: a file -> Table (measured.py, nccl.py, published.py) -> costs.py: Costs, which look a call up -> Figure, or why there is none

environment.py says where NCCL was told something else when a figure was taken than at the server that is asked about.

Tables that come with the package lie in data/: published ones (published.py tells their format), and Measurement files as a bench wrote
them, which may be gzip'd whole. Whatever lies there is used.
"""
