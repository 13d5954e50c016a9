"""What a hook recorded: ring files of this user's processes, found, checked and read.

folder.py says where they lie, ring.py reads one, dtype.py names what is in it. Invariant: nothing here imports SGLang, torch or the hook;
a file that is damaged, hostile or somebody else's is refused with a reason and never crashes its reader.
"""
