"""The GPU fleet program: reads the stack file and creates the components of its sections, which are all optional."""
# ruff: noqa: E402

import os
import signal

# When a run fails or is cancelled, the engine prints the reason and then sends SIGINT to this program (pulumi 3.259.0, plugin.go:
# to the process group of the language host). A KeyboardInterrupt would print a traceback below it, also during the imports, which
# take a second.
signal.signal(signal.SIGINT, lambda *_: os._exit(130))

import pulumi

from components.messages import make_messages_safe
from components.program import Place, deploy
from components.sdk_patches import patch_sdk
from components.stack import read_stack

make_messages_safe()
patch_sdk()
for name, value in deploy(read_stack(), Place()).outputs.items():
    pulumi.export(name, value)
