"""A picture of a whole dashboard as the stand-in draws it: a PNG of 256 colours, small enough for git."""

from __future__ import annotations

import base64
import json
import struct
import time
import zlib

from lab.grafana.browser import Browser

REDRAW_S = 0.3  # the charts follow their panels' size a moment later
# Those of folded rows wait until somebody opens them.
TROUBLES = """[...document.querySelectorAll('.panel:not([data-state="drawn"]):not([data-state="waiting"])')]
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
