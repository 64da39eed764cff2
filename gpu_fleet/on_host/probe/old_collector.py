"""Does cron, or a service, still run a get_gpu_metrics.sh, which writes the metrics that our textfile collector writes too?

GPU_FLEET_REPLACE_OLD_COLLECTOR: yes or no. An adopted node_exporter (GPU_FLEET_NODE_EXPORTER_ADOPTED) does not read the directory
of our collector: whatever reads node_gpu_ metrics on its port would lose them, so the old collector stays beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, Mapping

from ..files import text_of
from .host import Host

ENTRY = "/etc/cron.d/prometheus_gpu_metrics"
_UNITS = "/etc/systemd/system/"


def probe(host: Host) -> Mapping[str, str]:
    """GPU_FLEET_OLD_COLLECTOR: none, found or replaced; and a notice where something is left to decide or to do by hand."""
    found = [path for path in _starters(host.prefix) if "get_gpu_metrics" in text_of(Path(host.prefix + path))]
    state, notice = decided(
        found,
        is_ours=host.has_placed("file", ENTRY),
        is_wanted=host.setting("REPLACE_OLD_COLLECTOR", "no") == "yes",
        is_adopted=host.setting("NODE_EXPORTER_ADOPTED", "no") == "yes",
    )
    return {"GPU_FLEET_OLD_COLLECTOR": state, **({"GPU_FLEET_OLD_COLLECTOR_NOTICE": notice} if notice else {})}


def decided(found: list[str], *, is_ours: bool, is_wanted: bool, is_adopted: bool) -> tuple[str, str]:
    """State and notice. `found`: crontabs and units that run it. `is_ours`: its entry has been replaced by ours."""
    if not found and not is_ours:
        return "none", ""
    if is_adopted:
        # What of it is ours is removed, which brings the original back.
        why = "the adopted node_exporter would serve no node_gpu_ metrics without it; remove adopt to replace both"
        return "found", f"get_gpu_metrics.sh stays: {why}" if is_wanted else ""
    by_hand = "; ".join(_by_hand(path) for path in found if path != ENTRY)
    if is_wanted:
        return "replaced" if is_ours or ENTRY in found else "none", by_hand
    if ENTRY not in found:
        return "found" if is_ours else "none", by_hand
    what = "replaceOldCollector: true in the stack file disables it and keeps a copy"
    notice = f"cron runs get_gpu_metrics.sh ({ENTRY}), whose metrics gpu-fleet replaces: {what}"
    return "found", "; ".join(filter(None, (notice, by_hand)))


def _by_hand(path: str) -> str:
    how = "disable that unit and its timer" if path.startswith(_UNITS) else "remove that line"
    return f"get_gpu_metrics.sh, whose metrics gpu-fleet replaces, still runs from {path}: {how} by hand"


def _starters(prefix: str) -> Iterator[str]:
    """The guide has an entry of cron, and proposes a timer of systemd where a reading a minute is too few."""
    crontabs = ("etc/cron.d/*", "etc/crontab", "var/spool/cron/crontabs/*", "var/spool/cron/root")
    for pattern in (*crontabs, f"{_UNITS[1:]}*.service"):
        for path in sorted(Path(prefix or "/").glob(pattern)):
            if not path.name.startswith("."):
                yield str(path)[len(prefix) :]
