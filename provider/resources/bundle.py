"""gpu-fleet:host:Bundle: keeps the archive for the hosts of this run, and shows what is in it."""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib

from provider.resources.resource import Call, Change, Checked, Current, Inputs, Outputs, ResourceError, changes
from provider.schema import Mistake, mistakes_of_inputs
from provider.values import UNKNOWN


class Archives:
    """The archives this run was given, uncompressed, by digest. The engine checks a Bundle before any host that depends on it."""

    def __init__(self) -> None:
        self._tars: dict[str, bytes] = {}

    def remember(self, archive: str) -> str:
        """The digest of a base64 gzip archive. Raises ValueError."""
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

    def __init__(self, archives: Archives):
        self._archives = archives

    def check(self, inputs: Inputs) -> Checked:
        """The archive goes no further than this: hundreds of kB in every state would be written on every checkpoint."""
        mistakes = mistakes_of_inputs(self.type_name, inputs)
        archive = inputs.get("archive")
        digest: object = UNKNOWN
        if isinstance(archive, str):
            try:
                digest = self._archives.remember(archive)
            except ValueError as error:
                mistakes.append(Mistake("archive", f"is not a gzip file in base64: {error}"))
        return Checked(changed={"digest": digest}, dropped=("archive",), mistakes=tuple(mistakes))

    async def diff(self, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> list[Change]:
        return list(changes(old, new))

    async def create(self, inputs: Inputs, call: Call) -> tuple[str, Outputs]:
        return "bundle", {"digest": inputs["digest"]}

    async def read(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> Current:
        return Current(id_)

    async def update(self, id_: str, old: Inputs, new: Inputs, outputs: Inputs, call: Call) -> Outputs:
        return {"digest": new["digest"]}

    async def delete(self, id_: str, inputs: Inputs, outputs: Inputs, call: Call) -> None:
        """Nothing to do: hosts keep their own copy until they are deleted themselves."""
