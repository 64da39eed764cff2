"""Reads every rule file and dashboard as a preview does, without a stack: `python -m gpu_fleet.signals`; exits 1 on an error."""

from __future__ import annotations

import sys

import dashboards
from gpu_fleet.signals import SignalErrors, check_signals, rule_files


def main() -> int:
    try:
        check_signals(rule_files(), dashboards.models(dashboards.Price(per_gpu_hour=1, currency="EUR")))
    except SignalErrors as errors:
        print(errors, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
