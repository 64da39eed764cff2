"""Foreign files that were at the paths of ours, or in a directory that only the bundle fills: saved, and restored on removal."""

from __future__ import annotations

import os

from .disk import Disk, copy_exactly, remove_empty, remove_tree, sync_tree
from .errors import attempt
from .files import Files
from .host import Host


class Foreign:
    def __init__(self, host: Host, disk: Disk, files: Files) -> None:
        self._host = host
        self._disk = disk
        self._files = files
        self._saved = f"{host.state}/saved"
        self.restored: list[str] = []

    def save(self, path: str) -> None:
        at, copy = self._host.at(path), self._saved + path
        with attempt(f"cannot save {at}, which is not ours"):
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            copy_exactly(at, copy)
            # Its path is ours from now on; if the copy were not yet on disk, a power cut would leave it empty.
            sync_tree(copy)

    def remove(self, path: str) -> None:
        """From a directory that only the bundle fills; a drop-in directory of our unit goes once it is empty."""
        self.save(path)
        with attempt(f"cannot remove {self._host.at(path)}"):
            remove_tree(self._host.at(path))
        directory = os.path.dirname(path)
        if directory.endswith((".service.d", ".timer.d")):
            remove_empty(self._host.at(directory))

    def restore(self, path: str) -> None:
        """The file that existed before ours. Its saved copy stays until `drop_saved`."""
        copy, at = self._saved + path, self._host.at(path)
        if not os.path.lexists(copy):
            return
        new = self._files.new_name(path)
        remove_tree(new)
        # It may be on another file system: first a copy, flushed to disk.
        with attempt(f"cannot restore {at}, which existed before us"):
            copy_exactly(copy, new)
            sync_tree(new)
            os.rename(new, at)
        self._disk.will_flush(os.path.dirname(at))
        self.restored.append(path)

    def drop_saved(self) -> None:
        """Deletes the saved copies of what was restored, once the records on disk call those paths ours no more. Until then the
        next run would remove a restored file as ours, and needs the copy again."""
        if not self.restored:
            return
        self._disk.flush_changes()
        for path in self.restored:
            remove_tree(self._saved + path)
        self.restored.clear()

    def restore_all(self) -> None:
        """Those that were saved when their directory became ours, unless the path exists again. Files put into a directory that
        we created were a change to our installation, and are removed with it."""
        for directory, directories, names in os.walk(self._saved):
            links = [name for name in directories if os.path.islink(os.path.join(directory, name))]
            for name in (*names, *links):
                path = os.path.join(directory, name)[len(self._saved) :]
                at = self._host.at(path)
                if os.path.isdir(os.path.dirname(at)) and not os.path.lexists(at):
                    self.restore(path)
