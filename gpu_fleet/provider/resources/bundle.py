"""gpu-fleet:host:Bundle: keeps the archive for this run's hosts, and shows its content."""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
from collections.abc import Mapping

from gpu_fleet.provider.renames import Renames
from gpu_fleet.provider.resources.resource import Call, Change, Checked, Current, Inputs, Outputs, ResourceError, changes
from gpu_fleet.provider.schema import InputError, errors_of_inputs
from gpu_fleet.provider.values import UNKNOWN
from gpu_fleet.safetext.terminal import printable


class Archives:
    """The archives of this run, uncompressed, by digest. The engine checks a Bundle before any host that depends on it."""

    def __init__(self) -> None:
        self._tars: dict[str, bytes] = {}

    def add(self, archive: str) -> str:
        """Keeps a base64 gzip archive and returns its digest. Raises ValueError."""
        try:
            tar = gzip.decompress(base64.b64decode(archive, validate=True))
        except (binascii.Error, OSError, EOFError) as error:
            raise ValueError(str(error)) from None
        digest = hashlib.sha256(tar).hexdigest()
        self._tars[digest] = tar
        return digest

    def get(self, digest: str) -> bytes:
        try:
            return self._tars[digest]
        except KeyError:
            raise ResourceError(
                f"bundle: the bundle {digest[:12]} is not part of this run; with --target, name its Bundle too "
                "(or add --target-dependents), and give Bundle and Host the same provider"
            ) from None


class Bundle:
    type_name = "gpu-fleet:host:Bundle"
    replaces_by_deleting_first = False

    def __init__(self, archives: Archives, renames: Renames):
        self._archives, self._renames = archives, renames

    def check(self, inputs: Inputs) -> Checked:
        """The archive is not stored: hundreds of kB would be written with every checkpoint of the state. `files` only show it."""
        errors = errors_of_inputs(self.type_name, inputs)
        archive = inputs.get("archive")
        digest: object = UNKNOWN
        if isinstance(archive, str):
            try:
                digest = self._archives.add(archive)
            except ValueError as error:
                errors.append(InputError("archive", f"is not a base64-encoded gzip file: {error}"))
        files = inputs["files"] if not errors and isinstance(inputs["files"], Mapping) else {}
        shown = {path: printable(text) if isinstance(text, str) else text for path, text in files.items()}
        self._renames.stay(() if errors or inputs.get("hosts") is UNKNOWN else inputs.get("hosts") or ())
        changed = {"digest": digest, **({"files": shown} if files else {})}
        return Checked(changed=changed, dropped=("archive", "hosts"), errors=tuple(errors))

    async def diff(self, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> list[Change]:
        return list(changes(old, new))

    async def create(self, inputs: Inputs, call: Call) -> tuple[str, Outputs]:
        return "bundle", {"digest": inputs["digest"]}

    async def read(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> Current:
        return Current(id_)

    async def update(self, id_: str, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> Outputs:
        return {"digest": new["digest"]}

    async def delete(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> None:
        """Nothing to delete: hosts keep their own copy until they are deleted."""
