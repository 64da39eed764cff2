"""How a Pulumi plugin serves: gRPC on a free port of the loopback, the port printed on stdout, the end when the engine ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc

UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]  # a dashboard, a state file
# Commands and requests wait for others, so threads are cheap; the engine itself asks for at most `--parallel` at a time.
THREADS = 256
ORPHAN_CHECK_S = 1.0


def serve(register: Callable[[grpc.Server], None], at_end: Callable[[], None]) -> int:
    """Serves until SIGINT or SIGTERM, or until the engine that started us is gone; `at_end` stops what is still running."""
    server = grpc.server(ThreadPoolExecutor(max_workers=THREADS), options=UNLIMITED)
    register(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()

    end = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: end.set())
    engine = os.getppid()
    print(port, flush=True)
    while not end.wait(ORPHAN_CHECK_S):
        if os.getppid() != engine:  # killed: it could not notify us
            break
    at_end()
    server.stop(grace=1).wait()
    sys.stdout.flush()
    # The threads of requests that nobody waits for any more must not keep the process alive.
    os._exit(0)
