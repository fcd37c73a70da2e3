import itertools
import subprocess
import sys

import pytest

MODULES = ["shapes.model", "shapes.render", "shapes.scene"]


@pytest.mark.parametrize("order", list(itertools.permutations(MODULES)), ids=" ".join)
def test_any_order(order):
    code = "; ".join(f"import {name}" for name in order)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
