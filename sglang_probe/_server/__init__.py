"""From a launch line, a log or a URL to a Server. Loaded by sglang_probe.launch."""
