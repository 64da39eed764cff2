"""The key of a stack's secrets, in what answers pulumi as HashiCorp Vault's transit engine does.

With a passphrase each start of pulumi derives the key in a million rounds, 0.27 s of CPU time: the third part of a small run.
Stacks whose passphrase is not what a test is about have their key here; the dev datacenter, the stacks of operations.new_stack
and the documented commands have a passphrase.
"""

from __future__ import annotations

import functools
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

PROVIDER = "hashivault://tests"


@functools.cache
def environment() -> dict[str, str]:
    """For a pulumi whose stack was made with `--secrets-provider PROVIDER`. Keys are known until this process ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Transit)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return {"VAULT_SERVER_URL": f"http://127.0.0.1:{server.server_port}", "VAULT_SERVER_TOKEN": "of-the-tests"}


class _Transit(BaseHTTPRequestHandler):
    keys: ClassVar[list[str]] = []

    def do_PUT(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "plaintext" in request:
            self.keys.append(request["plaintext"])
            answer = {"ciphertext": f"vault:v1:{self.keys.index(request['plaintext'])}"}
        else:
            answer = {"plaintext": self.keys[int(request["ciphertext"].rpartition(":")[2])]}
        text = json.dumps({"data": answer}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Nothing on standard error."""
