"""Takes pictures of the page of a report with headless Chromium: `make look RUN=runs/demo`.

RUN is a run folder with a report, or the report itself. The pictures show the page in light and dark
colors, and as wide as a telephone. They go to build/look/.
"""

import shutil
import subprocess
import sys
from pathlib import Path

OUT = Path("build/look")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PICTURES = {
    "light": ["--window-size=1200,3000"],
    "dark": ["--window-size=1200,3000", "--blink-settings=preferredColorScheme=0"],
    "narrow": ["--window-size=400,3000"],
}


def main(folder: str) -> int:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        return refuse(f"no browser is installed; install one of {', '.join(BROWSERS)}")
    places = [Path(folder) / "index.html", Path(folder) / "report" / "index.html"]
    page = next(filter(Path.is_file, places), None)
    if page is None:
        return refuse(f"RUN={folder} has no report; make one with gshard-eval --report")
    OUT.mkdir(parents=True, exist_ok=True)
    for name, flags in PICTURES.items():
        picture = OUT / f"{name}.png"
        command = [browser, "--headless", "--no-sandbox", "--hide-scrollbars", *flags]
        command += [f"--screenshot={picture}", page.resolve().as_uri()]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return refuse(f"{browser} could not open {page}; try it by hand")
        print(picture)
    return 0


def refuse(text: str) -> int:
    print(f"make look: {text}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
