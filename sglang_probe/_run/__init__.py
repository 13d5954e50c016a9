"""Running the dispatch: the Coordinator of one rank, the LocalGroup that starts and drives all of them, and what comes back."""
