"""The command line: one module a command. Loaded by sglang_probe.cli."""
