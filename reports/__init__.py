"""From scored sweeps to tables, figures and one page. Nothing here talks to MLflow.

Guarantees of this package:

- `build.py` has four steps for every kind of report: collect, score, draw, page.
- The same runs give the same bytes. A report's folder is replaced atomically (`folder.py`).
- A page is one file: no network access, no script of others, and untrusted text is escaped (`page.py`, `escapes.py`).
- Figures are drawn from frozen infos (`figures/`), which are also written as CSV.
- Results of a miniature model are labelled, and never share a table with the paper's.

`sweep.py`, `study.py` and `search.py` say what is on each page; `templates/` how it looks.
"""
