"""From scored sweeps to tables, figures and a page. Nothing here talks to MLflow.

Guarantees of this package:

- The report of a sweep, a study or a search goes through the same three steps (`build.py`).
- A report's folder is replaced atomically, and only if it is a report of ours (`saved.py`).
- The same runs give the same bytes: no dates, no random ids (`figures/drawing.py`).
- The page is one file without network access; other people's texts are escaped in it (`build.py`, `names.py`).
- `report.json` is the record for programs (`build.py`). Reading it trusts nothing in it (`saved.py`).

Begin with `build.py` and `sections.py`, then `sweep.py`, `study.py` (their lists of sections) or `search.py`. The other
modules make sections; `tables.py` makes tables and writes them, `words.py` the findings and what a paper takes
over, `names.py` names, numbers and escapes; `figures/` draws, `templates/` has the pages, `paper/` the paper's numbers.
docs/report_page.md explains the page.
"""
