"""This model against SGLang's own code. Loaded by conform, its command and the tests."""
