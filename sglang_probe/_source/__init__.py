"""SGLang's own source: fetched, and lifted out of its syntax tree. Loaded by conform and by checkouts."""
