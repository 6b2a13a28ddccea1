"""docs/models.md lists what the registry has."""

from __future__ import annotations

from model_document import BEGIN, END, PAGE, table


def test_the_page_lists_what_is_read_and_where_it_runs() -> None:
    """``python tests/models/model_document.py`` writes it anew."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    assert rest.partition(END)[0].strip() == table()
