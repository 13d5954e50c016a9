"""explain: can this change of SGLang explain that difference? Its answer joins what the other modules know.

    explain.py   arguments, checked
    given.py     what was seen -> arms          seen.py: arms -> verdict, milliseconds a step     stream.py: can it be one stream's?
    sides.py     one launch on both releases -> steps -> pairs of calls
    proof.py     which routes change, states counted           bounds.py: what a change of path costs at most
    case.py      all of these for one question -> answer.py: the first word that holds, experiment.py: what would show more
    types.py     Explanation and its parts                     page.py: what people see

Invariant: what is answered rests on this launch's own machine; another machine's figure is an illustration, and decides nothing.
"""
