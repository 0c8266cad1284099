"""A table of figures as benchmarks print it."""

from collections.abc import Iterator

Rows = Iterator[tuple[str, dict[str, float]]]


def show(title: str, rows: Rows, scale: float, digits: int) -> dict[str, dict[str, float]]:
    """Prints the rows as a Markdown table and returns them, each value times `scale`."""
    found = {row: {column: scale * float(value) for column, value in values.items()} for row, values in rows}
    columns = list(dict.fromkeys(column for values in found.values() for column in values))
    print(f"\n| {title} | " + " | ".join(columns) + " |\n|---|" + "---:|" * len(columns))
    for row, values in found.items():
        cells = [f"{values[column]:.{digits}f}" if column in values else "" for column in columns]
        print(f"| {row} | " + " | ".join(cells) + " |", flush=True)
    return found
