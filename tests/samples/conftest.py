"""Tests against recordings by other people, which stay beside the checkout and are never copied into it.

The modules here are collected only where that folder exists, so that a checkout without it has no skipped tests; the run then
says so in one line.
"""

from pathlib import Path

SAMPLES = Path(__file__).parents[3] / "shared" / "data" / "samples"

collect_ignore_glob = [] if SAMPLES.is_dir() else ["test_*.py"]
