"""How often the exporters are scraped: the default, and Alloy's configuration for another interval.

Not here: how often exporters and collectors read the GPUs, every 15 s whatever the interval. Readiness and the host's own check
read their files, and a scrape then finds a reading that is at most 15 s old.
"""

from __future__ import annotations

import re
from typing import Final

DEFAULT_S: Final = 15
# Shorter ones would send every reading twice. With longer ones a series would pass Prometheus's lookback of 5 minutes after a few
# scrapes that fail.
ALLOWED_S: Final = (DEFAULT_S, 30, 60)

_IN_ALLOY: Final = re.compile(r'(scrape_interval\s*=\s*)"(\d+)s"')


def scraped_every(config: str, interval_s: int) -> str:
    """An .alloy file in which no scrape is more frequent. The files have the default, so that they are valid as they are; those
    of a stack that keeps it stay the same to the byte, and its hosts reload nothing."""
    return _IN_ALLOY.sub(lambda found: f'{found[1]}"{max(int(found[2]), interval_s)}s"', config)
