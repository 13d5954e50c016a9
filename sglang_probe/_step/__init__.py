"""From a model and a server to the all-reduces of one step. Loaded by step."""
