"""Adapts drawings to a page's dark scheme: each colour becomes a CSS variable with its light value as the default.

Black and deep blue would be invisible on a dark background, and white would glare. A chromatic colour keeps its hue and
chroma and gets a lightness of at least LEAST; greys and pale backgrounds are inverted to lie between PAPER and INK.
Lightness is that of OKLab (B. Ottosson, "A perceptual color space for image processing", 2020).
"""

import math
import re
from operator import mul

PAPER, INK = 0.23, 0.92  # the lightness of white and of black in the dark scheme
LEAST = 0.68
GREY, PALE = 0.035, 0.09  # chroma below which a colour counts as grey, or as a pale background
PALE_FROM = 0.85  # lightness
MOST = 48  # colours of a drawing; one with more has a colour scale, whose order would be lost

_COLOUR = re.compile(r"\b(fill|stroke): ?#([0-9a-fA-F]{6})\b")
_VARIABLE = re.compile(r"var\(--k([0-9a-f]{6}),")
_TO_LMS = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
_TO_LAB = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)
_FROM_LAB = (
    (1.0, 0.3963377774, 0.2158037573),
    (1.0, -0.1055613458, -0.0638541728),
    (1.0, -0.0894841775, -1.2914855480),
)
_FROM_LMS = (
    (4.0767416621, -3.3077115913, 0.2309699292),
    (-1.2684380046, 2.6097574011, -0.3413193965),
    (-0.0041960863, -0.7034186147, 1.7076147010),
)

Triple = tuple[float, float, float]


def adaptable(svg: str, scale: bool = False) -> str:
    """The drawing with its colours as variables `--kRRGGBB`; with a colour `scale`, or very many colours, only the
    greys.
    """
    colours = {found.lower() for _, found in _COLOUR.findall(svg)}
    few = len(colours) <= MOST and not scale
    kept = colours if few else {one for one in colours if _chroma(one) < GREY}

    def variable(match: re.Match[str]) -> str:
        name, colour = match[1], match[2].lower()
        return f"{name}: var(--k{colour}, #{colour})" if colour in kept else match[0]

    return _COLOUR.sub(variable, svg)


def dark_style(page: str) -> str:
    """The style sheet with the dark value of every variable in the drawings of `page`; for screens only."""
    values = "".join(f"--k{one}:{dark(one)};" for one in sorted(set(_VARIABLE.findall(page))))
    if not values:
        return ""
    wanted, asked = ':root:not([data-scheme="light"]) .card', ':root[data-scheme="dark"] .card'
    return (
        f"@media screen and (prefers-color-scheme: dark) {{ {wanted} {{ {values} }} }}\n"
        f"@media screen {{ {asked} {{ {values} }} }}"
    )


def dark(colour: str) -> str:
    """The colour (six hexadecimal digits) for a dark background, as `#rrggbb`."""
    lightness, a, b = _oklab(colour)
    chroma = math.hypot(a, b)
    if chroma < GREY or (chroma < PALE and lightness > PALE_FROM):
        lightness = INK - (INK - PAPER) * lightness**2  # dark greys are text, which has to stay legible
    else:
        lightness = max(lightness, LEAST)
    for share in (
        1 - step / 20 for step in range(21)
    ):  # reduce the chroma until the colour is in the sRGB gamut
        channels = _linear(lightness, share * a, share * b)
        if all(-1e-4 <= channel <= 1 + 1e-4 for channel in channels):
            break
    return "#" + "".join(f"{_encoded(channel):02x}" for channel in channels)


def _chroma(colour: str) -> float:
    _, a, b = _oklab(colour)
    return math.hypot(a, b)


def _oklab(colour: str) -> Triple:
    parts = [int(colour[start : start + 2], 16) / 255 for start in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return _times(_TO_LAB, [math.cbrt(value) for value in _times(_TO_LMS, linear)])


def _linear(lightness: float, a: float, b: float) -> Triple:
    return _times(_FROM_LMS, [value**3 for value in _times(_FROM_LAB, [lightness, a, b])])


def _encoded(channel: float) -> int:
    value = min(1.0, max(0.0, channel))
    return round(255 * (12.92 * value if value <= 0.0031308 else 1.055 * value ** (1 / 2.4) - 0.055))


def _times(matrix: tuple[Triple, ...], vector: list[float]) -> Triple:
    x, y, z = (math.fsum(map(mul, row, vector)) for row in matrix)
    return x, y, z
