"""Photographs every dashboard of a running stand-in: `python -m lab.grafana.pictures --url URL --password-file FILE --to DIR`.

`make pictures` does it with the dev datacenter, for docs/pictures. The files are PNGs of 256 colours, small enough for git.
"""

from __future__ import annotations

import argparse
import base64
import json
import struct
import sys
import time
import zlib
from pathlib import Path

from lab.grafana.browser import Browser, BrowserError
from lab.toolchain.errors import ToolchainError

WIDTHS = (1280, 1920)
REDRAW_S = 0.3  # the charts follow their panels' size a moment later


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.grafana.pictures", description="Photographs every dashboard")
    parser.add_argument("--url", required=True, help="of the stand-in")
    parser.add_argument("--user", default="admin")
    parser.add_argument("--password-file", required=True, type=Path, metavar="FILE")
    parser.add_argument("--to", required=True, type=Path, metavar="DIR")
    parser.add_argument("--range", default="now-15m", metavar="FROM", help="how far back, default %(default)s")
    arguments = parser.parse_args()
    try:
        with Browser() as browser:
            browser.log_in(arguments.user, arguments.password_file.read_text().strip())
            photograph_all(browser, arguments.url, arguments.range, arguments.to)
    except (BrowserError, ToolchainError, OSError) as error:
        print(f"pictures: {error}", file=sys.stderr)
        return 1
    return 0


def photograph_all(browser: Browser, url: str, start: str, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    browser.open(f"{url}/")
    uids = browser.run("fetch('/api/search?type=dash-db').then((answer) => answer.json()).then((all) => all.map(({uid}) => uid))")
    for uid in sorted(uids):
        for width in WIDTHS:
            file = directory / f"{uid}-{width}.png"
            file.write_bytes(photograph(browser, f"{url}/d/{uid}?from={start}&to=now", width))
            empty = browser.run(TROUBLES)
            print(f"{file}  {file.stat().st_size // 1000} kB" + (f"  not drawn: {', '.join(empty)}" if empty else ""))


TROUBLES = """[...document.querySelectorAll('.panel:not([data-state="drawn"])')]
  .map((panel) => `${panel.querySelector("h3").innerText} (${panel.querySelector(".body").innerText})`)"""


def photograph(browser: Browser, url: str, width: int) -> bytes:
    """The whole dashboard at `width` pixels, as high as it is: a first look finds the height."""
    browser.size(width, 1080)
    browser.open(url)
    browser.size(width, browser.run("document.documentElement.scrollHeight"))
    time.sleep(REDRAW_S)
    picture = base64.b64encode(browser.picture()).decode()
    found = browser.run(f"import('/preview/quantize.js').then(({{quantize}}) => quantize({json.dumps(picture)}))")
    palette, pixels = (base64.b64decode(found[name]) for name in ("palette", "pixels"))
    return png(found["width"], found["height"], palette, pixels)


def png(width: int, height: int, palette: bytes, pixels: bytes) -> bytes:
    """`palette`: red, green, blue of each colour; `pixels`: a colour's number each, row after row. Source: PNG, third edition."""
    rows = b"".join(b"\0" + pixels[start : start + width] for start in range(0, width * height, width))
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)  # 8 bits a pixel, by palette
    chunks = ((b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


if __name__ == "__main__":
    sys.exit(main())
