"""What people see: terminal, plain text, HTML. Loaded when a result is shown."""
