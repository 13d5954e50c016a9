"""check: what a profiler trace shows of a server's all-reduces, held against what its launch line or log should do.

    files.py     a path or a folder -> files, their kind, the rank in their names
    stream.py    JSON, plain or gzip, one event at a time
    chrome.py    a trace of PyTorch's profiler -> Trace         nsys.py: an SQLite export of Nsight Systems -> Trace
    kernels.py   a kernel's name -> which path it is of, by one table (table.py, table_others.py)
    events.py    Trace and Track: what of a trace is kept       calls.py: kernels -> calls
    steps.py     calls -> steps, and by what they were found    target.py: which of them are the step that was asked about
    expected.py  a Step -> one slot for each call, in order
    compare.py   slots against calls: the first difference      ranks.py: ranks against one another
    check.py     all of these for one question                  types.py: Checked and its parts      page.py: what people see

Invariant: memory follows the number of collectives in a trace, not its length; what it does not hold whole is held against nothing.
"""
