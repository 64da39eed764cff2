"""Started as `python3 -I -S -B /opt/gpu-fleet/lib/python PROGRAM [ARGUMENT...]`."""

from __future__ import annotations

import sys

from on_host import textfile

if __name__ == "__main__":
    programs = {"textfile": textfile.main}
    sys.exit(programs[sys.argv[1]](sys.argv[2:]))
