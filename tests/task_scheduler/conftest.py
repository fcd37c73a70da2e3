"""The flow tests' plug-ins serve here as well."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "flow"))
