"""The version of this project, of which there is one: that of the provider's schema, which Pulumi reads."""

import json
from pathlib import Path
from typing import Final

VERSION: Final[str] = json.loads((Path(__file__).parent / "provider/schema.json").read_text())["version"]
