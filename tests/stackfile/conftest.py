from pathlib import Path

import pytest

from tests.stackfile.stacks import write_known_hosts


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A directory like the one of a stack file, with the known_hosts file that the good stack names."""
    write_known_hosts(tmp_path)
    return tmp_path
