"""Opens the page of a report in a headless browser, tries it, and takes pictures: `make look`.

`make look RUN=FOLDER` takes the report of a run: FOLDER, or FOLDER/report. Without RUN, it makes example
reports from invented scores. The pictures are in build/look/.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gshard_nmt.errors import UserError  # noqa: E402
from gshard_nmt.evaluation.report import report  # noqa: E402
from scripts.browser import Browser, find_browser  # noqa: E402
from scripts.example_report import example_report  # noqa: E402

_OUT = ROOT / "build" / "look"
_NARROW = 400
"""Pixels of a telephone."""


def main(arguments: list[str]) -> int:
    """Looks at the pages, prints each check, and returns the exit code."""
    try:
        program = find_browser()
        pages = find_pages(arguments)
    except UserError as error:
        print(f"make look: {error}", file=sys.stderr)
        return 2
    failures = 0
    with Browser(program) as browser:
        for name, page in pages.items():
            print(f"{name}: {page}")
            for check, problem in look(browser, name, page).items():
                print(f"  {'ok  ' if not problem else 'FAIL'} {check}{problem and f': {problem}'}")
                failures += bool(problem)
    print(f"pictures: {_OUT}")
    return 1 if failures else 0


def find_pages(arguments: list[str]) -> dict[str, Path]:
    """Returns the pages by name: those of the arguments, or of example reports that it makes.

    Raises:
      UserError: a folder has no report.
    """
    pages = {}
    for argument in arguments:
        folder = Path(argument)
        places = [folder / "index.html", folder / "report" / "index.html"]
        page = next((place for place in places if place.is_file()), None)
        if page is None:
            raise UserError(
                f"RUN={argument} has no index.html and no report/index.html. Give the folder of a "
                "report, which gshard-eval --report makes."
            )
        pages[folder.resolve().name] = page
    if not arguments:
        for count, systems in ((3, 1), (100, 1), (100, 3)):
            name = f"example_{count}" + (f"_systems_{systems}" if systems > 1 else "")
            report.write(example_report(count, systems), _OUT / name)
            pages[name] = _OUT / name / "index.html"
    return pages


def look(browser: Browser, name: str, page: Path) -> dict[str, str]:
    """Tries a page and takes its pictures. Returns each check with its problem, "" if there is none."""
    browser.errors.clear()
    browser.requests.clear()
    checks = {}
    colors = {}
    for scheme in ("light", "dark"):
        browser.open(page, 1200, 900, scheme == "dark")
        browser.picture(_OUT / f"{name}_{scheme}.png")
        colors[scheme] = browser.value(_FIGURE)
        wide = browser.value("document.documentElement.scrollWidth")
        checks[f"{scheme}: no sideways scrolling"] = "" if wide <= 1200 else f"{wide} px"
    checks["the figure has other colors in the dark"] = _differ(colors["light"], colors["dark"])
    checks["the table sorts by a click"] = _sorting(browser)
    browser.open(page, _NARROW, 800, dark=False)
    browser.picture(_OUT / f"{name}_narrow.png")
    wide = browser.value("document.documentElement.scrollWidth")
    checks[f"fits {_NARROW} px"] = "" if wide <= _NARROW else f"the page is {wide} px wide"
    checks["no error in the console"] = "; ".join(browser.errors)
    others = sorted(set(browser.requests) - {page.absolute().as_uri()})
    checks["no request"] = ", ".join(others)
    return checks


_FIGURE = """(() => {
  const image = document.querySelector('.chart img');
  return [image.currentSrc, image.naturalWidth > 300 ? 'drawn' : 'empty'];
})()"""


def _differ(light: list[str], dark: list[str]) -> str:
    if light[0] == dark[0] or "empty" in (light[1], dark[1]):
        return f"light {light[0][-40:]} {light[1]}, dark {dark[0][-40:]} {dark[1]}"
    return ""


_BLEU_COLUMN = """(() => {
  const heads = Array.from(document.querySelectorAll('#languages thead th'));
  const column = heads.findIndex((head) => head.textContent === 'BLEU');
  const rows = Array.from(document.querySelectorAll('#languages tbody tr'));
  heads[column].id = 'bleu-head';
  return {
    sort: heads[column].getAttribute('aria-sort'),
    values: rows.map((row) => Number(row.children[column].dataset.value)),
  };
})()"""


def _sorting(browser: Browser) -> str:
    before = browser.value(_BLEU_COLUMN)["values"]
    for direction in ("descending", "ascending"):
        browser.move_to("#bleu-head button", click=True)
        after = browser.value(_BLEU_COLUMN)
        expected = sorted(before, reverse=direction == "descending")
        if (after["sort"], after["values"]) != (direction, expected):
            return f"after a click for {direction}: {after}"
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
