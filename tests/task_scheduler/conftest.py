"""The plug-ins of the flow's and the command's tests serve here as well."""

import sys
from pathlib import Path

for _folder in ("flow", "cli"):
    sys.path.append(str(Path(__file__).parent.parent / _folder))
