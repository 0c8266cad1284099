"""The picture of the rooms in docs/architecture.md, drawn from the imports: `python3 -m dev.rooms` redraws it.

An arrow goes from the importing to the imported room. Arrows that follow from others are left out. Imports for type
checkers alone (`if TYPE_CHECKING:`) do not count, since they load nothing.
"""

import ast
import itertools
import textwrap
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "pictures" / "rooms.svg"
# Import name -> folder, for packages outside cppo_lab/.
BESIDE = {"cppo_lab.analysis": "analysis", "cppo_lab.reports": "reports"}
# May be imported everywhere, and import no room (tests/test_direction.py): arrows to them would hide the others.
EVERYWHERE = frozenset(
    {
        *("core_records", "errors", "hub", "installed", "plugins"),
        *("rules", "files", "schema", "signals"),
    }
)
WIDTH, LANE, HEIGHT, GAP_X, GAP_Y, MARGIN, LINE = 104, 4, 34, 18, 48, 20, 18
LETTER = 8.0  # pixels for a character: 6.5 on average in Chromium, more in wider fonts


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module of the product by its import name."""
    found = {}
    for name, folder in {"cppo_lab": "cppo_lab", **BESIDE}.items():
        base = root / folder
        for path in sorted(base.rglob("*.py")):
            *folders, _ = parts = path.relative_to(base).with_suffix("").parts
            if "build" in folders or path.is_symlink() or any(up.is_symlink() for up in path.parents):
                continue
            found[".".join([name, *parts]).removesuffix(".__init__")] = path
    return found


def imports(path: Path, known: Mapping[str, Path]) -> Iterator[tuple[str, bool]]:
    """The modules of ours that a file imports; whether only when a function runs. Types alone do not count."""
    for node, late in statements(ast.parse(path.read_text()).body):
        yield from ((name, late) for name in targets(node, known) if name in known)


def statements(
    body: list[ast.stmt], late: bool = False
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """The import statements in a body of code, without those for type checkers; whether each is in a function."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, late
        inside = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            for part in getattr(node, field, []):
                yield from statements(part.body if not isinstance(part, ast.stmt) else [part], inside)


def targets(node: ast.Import | ast.ImportFrom, known: Collection[str]) -> list[str]:
    """The modules that a statement imports; `known` tells those of ours from names within a module."""
    if isinstance(node, ast.Import):
        return [one.name for one in node.names]
    if node.level or not node.module:
        return []
    whole = (f"{node.module}.{one.name}" for one in node.names)
    return [name if name in known else node.module for name in whole]


def room(module: str) -> str:
    """The folder or file of `cppo_lab` that a module belongs to."""
    return module.split(".")[1] if "." in module else module


def arrows(known: Mapping[str, Path]) -> dict[str, set[str]]:
    """Room -> the rooms that it imports."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, path in known.items():
        for other, _ in imports(path, known):
            if room(name) != room(other) and "cppo_lab" not in (room(name), room(other)):
                found[room(name)].add(room(other))
    return found


def circles(known: Mapping[str, Path]) -> list[list[str]]:
    """Groups of files that import each other in a circle, including imports inside functions (Tarjan's algorithm)."""
    graph = {name: sorted({one for one, _ in imports(path, known)} - {name}) for name, path in known.items()}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group: list[str] = []
            while not group or group[-1] != name:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for name in graph:
        if name not in index:
            visit(name)
    return sorted(found)


def _reduced(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The graph without arrows that others imply (transitive reduction)."""

    def reach(start: str, seen: set[str]) -> set[str]:
        for other in graph.get(start, ()):
            if other not in seen:
                seen.add(other)
                reach(other, seen)
        return seen

    return {
        name: {
            one for one in others if not any(one in reach(other, set()) for other in others if other != one)
        }
        for name, others in graph.items()
    }


def _layers(graph: Mapping[str, set[str]], names: list[str]) -> list[list[str]]:
    depth: dict[str, int] = {}

    def measure(name: str) -> int:
        if name not in depth:
            depth[name] = 1 + max((measure(one) for one in graph.get(name, ())), default=-1)
        return depth[name]

    layers: list[list[str]] = [[] for _ in range(1 + max(measure(name) for name in names))]
    for name in names:
        layers[depth[name]].append(name)
    return layers[::-1]  # rooms that nothing imports come first


def picture(known: Mapping[str, Path]) -> str:
    """The SVG."""
    whole = {
        name: {one for one in others if one not in EVERYWHERE}
        for name, others in arrows(known).items()
        if name not in EVERYWHERE
    }
    names = sorted({*whole, *(one for others in whole.values() for one in others)})
    graph = _reduced(whole)
    layers = _layers(whole, names)
    lanes = _lanes(graph, layers)
    at, width = _places(layers, lanes)
    bottom = MARGIN + len(layers) * (HEIGHT + GAP_Y)
    common = [one for one in sorted(EVERYWHERE) if one in {room(name) for name in known}]
    texts = textwrap.wrap(
        "may be imported everywhere: " + ", ".join(common), int((width - 4 * MARGIN) / LETTER)
    )
    low = HEIGHT + (len(texts) - 1) * LINE
    height = bottom + low + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif" '
        'font-size="13" role="img" aria-label="The rooms of CPPO Lab and what each imports">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#667085"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fff"/>',
    ]
    for path in lanes:
        x, y = at[path[0]]
        drawn = f"M{x:.0f} {y + HEIGHT:.0f}"
        for step in path[1:]:
            (a, b), y = (x, y + HEIGHT), at[step][1]
            x = at[step][0]
            end = y - 2 if step == path[-1] else y
            bend = (end - b) / 2
            drawn += f"C{a:.0f} {b + bend:.0f} {x:.0f} {end - bend:.0f} {x:.0f} {end:.0f}"
            drawn += "" if step == path[-1] else f"V{y + HEIGHT:.0f}"
        lines.append(f'<path d="{drawn}" fill="none" stroke="#667085" marker-end="url(#tip)"/>')
    for name in names:
        x, y = at[name]
        lines += _box(x - WIDTH / 2, y, WIDTH, HEIGHT, [name], "#eef4ff")
    lines += _box(MARGIN, bottom, width - 2 * MARGIN, low, texts, "#f2f4f7")
    return "\n".join([*lines, "</svg>"]) + "\n"


def _lanes(graph: Mapping[str, set[str]], layers: list[list[str]]) -> list[list[str]]:
    """Each arrow as the names from end to end; the lane by which it passes a layer gets a name and a place there."""
    row = {name: number for number, layer in enumerate(layers) for name in layer}
    found = []
    for name in sorted(graph):
        for other in sorted(graph[name]):
            between = [f"{name}>{other}@{number}" for number in range(row[name] + 1, row[other])]
            for lane in between:
                layers[int(lane.rpartition("@")[2])].append(lane)
            found.append([name, *between, other])
    return found


def _places(layers: list[list[str]], lanes: list[list[str]]) -> tuple[dict[str, tuple[float, float]], float]:
    """The middle of the upper edge of each box and lane, and the width of the picture."""
    above: dict[str, list[str]] = defaultdict(list)
    for path in lanes:
        for up, down in itertools.pairwise(path):
            above[down].append(up)
    sizes = [sum((LANE if ">" in one else WIDTH) + GAP_X for one in layer) - GAP_X for layer in layers]
    width = max(sizes) + 2 * MARGIN
    at: dict[str, tuple[float, float]] = {}
    for number, (layer, size) in enumerate(zip(layers, sizes, strict=True)):
        x = (width - size) / 2
        for name in sorted(layer, key=lambda name: (_mean([at[up][0] for up in above[name]]), name)):
            own = LANE if ">" in name else WIDTH
            at[name] = (x + own / 2, MARGIN + number * (HEIGHT + GAP_Y))
            x += own + GAP_X
    return at, width


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _box(x: float, y: float, width: float, height: float, texts: list[str], colour: str) -> list[str]:
    corner = f'x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height}"'
    middle, first = x + width / 2, y + HEIGHT / 2 + 4.5
    style = 'text-anchor="middle" fill="#101828"'
    return [
        f'<rect {corner} rx="6" fill="{colour}" stroke="#98a2b3"/>',
        *(
            f'<text x="{middle:.0f}" y="{first + row * LINE:.1f}" {style}>{text}</text>'
            for row, text in enumerate(texts)
        ),
    ]


def main() -> None:
    """Write the picture, and print the numbers by which a change of structure is judged."""
    known = modules()
    PICTURE.write_text(picture(known))
    late = sum(is_late for path in known.values() for _, is_late in imports(path, known))
    lines = sum(len(path.read_text().splitlines()) for path in known.values())
    print(f"{len(known)} files, {lines} lines, {late} imports of ours inside functions")
    print(f"{len(circles(known))} circles of files")
    for group in circles(known):
        print("  " + ", ".join(group))


if __name__ == "__main__":
    main()
