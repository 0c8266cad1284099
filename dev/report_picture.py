"""The picture of the README: a report page as a browser shows it, from its head to the end of the verdicts.

    cppo reference import && cppo report main --from paper
    python -m dev.report_picture reports/build/main/index.html

Writes docs/pictures/report.png.
"""

import io
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import FloatRect, sync_playwright

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "report.png"
WIDTH = 1100


def main(page_file: str) -> None:
    """Write PICTURE. Needs Debian's Chromium, as the browser tests do."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 900})
        page.goto(Path(page_file).resolve().as_uri())
        page.locator("#curves svg:visible").first.wait_for()
        end = page.locator("#verdicts").bounding_box()
        assert end is not None
        whole: FloatRect = {"x": 0, "y": 0, "width": WIDTH, "height": end["y"] + end["height"]}
        shown = page.screenshot(full_page=True, clip=whole)
        browser.close()
    Image.open(io.BytesIO(shown)).convert("RGB").quantize(256).save(PICTURE, optimize=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
