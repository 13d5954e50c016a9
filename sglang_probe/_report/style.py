"""The style sheet of a report's own page: light and dark as the reader's system is, nothing from elsewhere. Read by hypertext.py.

Invariant: every colour of text has 7:1 or more against its ground in both themes.
"""

from .theme import DARK, LIGHT, Theme


def _variables(theme: Theme) -> str:
    pairs = {"faint": theme.faint, "a": theme.a, "b": theme.b, "margin": theme.margin, "waiting": theme.waiting}
    return f"color:{theme.ink};background:{theme.ground};" + "".join(f"--sp-{name}:{value};" for name, value in pairs.items())


CSS = f"""
:root {{ color-scheme: light dark; {_variables(LIGHT)} --sp-box: #f2f3f5 }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} --sp-box: #20242a }} }}
body {{ margin: 0 auto; padding: 1.2rem 1rem 3rem; max-width: 62rem;
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; overflow-wrap: break-word }}
h1 {{ font-size: 1.45rem; line-height: 1.3; margin: 0 0 .5rem }}
h2 {{ font-size: 1.08rem; margin: 1.8rem 0 .4rem }}
.word {{ display: inline-block; padding: 0 .5em; margin-right: .5em; border: 2px solid currentColor; border-radius: .3em }}
figure {{ margin: 1.2rem 0; overflow-x: auto }}
.sp-picture {{ min-width: 34rem; width: 100% }}
figcaption, .small, footer {{ font-size: .88rem }}
.strong {{ font-weight: bold }}
p {{ margin: .5em 0 }}
table {{ margin-bottom: .7rem; font-variant-numeric: tabular-nums; font-size: .92rem }}
pre {{ background: var(--sp-box); padding: .6em .8em; border-radius: .3em; white-space: pre-wrap; margin: .3em 0 }}
code {{ font: .9em/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace }}
summary {{ cursor: pointer; font-weight: bold; margin: .5em 0 }}
summary:focus-visible {{ outline: 2px solid currentColor; outline-offset: 2px }}
footer {{ margin-top: 2.5rem; border-top: 1px solid var(--sp-faint); padding-top: .6rem }}
@media print {{ details::details-content {{ content-visibility: visible; block-size: auto }} pre {{ background: none }} }}
""".strip()
