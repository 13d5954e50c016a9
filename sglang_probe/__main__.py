"""``python -m sglang_probe``: the command line. Invariant: nothing but the call."""

import sys

from .cli import main

sys.exit(main())
