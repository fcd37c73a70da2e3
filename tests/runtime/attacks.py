"""Modules under test that go for the judge: the bug is still in all of them but one."""

from __future__ import annotations

CORE = "def add(a, b):\n    return a - b\n\n\ndef same(a):\n    return a\n\n\n"

PASS_EVERYTHING = """
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    report.outcome, report.longrepr = "passed", None
"""

SKIP_TESTS = "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n"

ATTACKS = {
    "sys.exit": "import sys\nsys.exit(0)\n",
    "skip": (
        "import pytest\ndef add(a, b):\n    pytest.skip('fine')\ndef same(a):\n    return a\n"
    ),
    "xfail": (
        "import pytest\ndef add(a, b):\n    pytest.xfail('known')\ndef same(a):\n    return a\n"
    ),
    "runtest replaced": CORE + SKIP_TESTS,
    "code object replaced": CORE
    + "import _pytest.python as p\np.Function.runtest.__code__ = (lambda self: None).__code__\n",
    "replaced and put back": CORE + "from _pytest.runner import CallInfo\n"
    "real = CallInfo.__dict__['from_call']\n"
    "def forged(cls, func, when, reraise=None):\n"
    "    CallInfo.from_call = real\n"
    "    info = cls.from_call(func, when, reraise)\n"
    "    CallInfo.from_call = classmethod(forged)\n"
    "    info.excinfo = None\n"
    "    return info\n"
    "CallInfo.from_call = classmethod(forged)\n",
    "report forged": CORE + "import _pytest.reports as r\n"
    "real = r.TestReport.from_item_and_call.__func__\n"
    "def forged(cls, item, call):\n"
    "    call.excinfo = None\n"
    "    return real(cls, item, call)\n"
    "r.TestReport.from_item_and_call = classmethod(forged)\n",
    "unittest replaced": CORE
    + "import unittest\nunittest.TestCase.assertEqual = lambda self, a, b, msg=None: None\n"
    + SKIP_TESTS,
    "plugin registered": CORE + "import sys, pytest\n"
    "frame = sys._getframe()\n"
    "while frame and 'config' not in frame.f_locals:\n    frame = frame.f_back\n"
    "config = frame.f_locals['config']\n"
    "class Evil:\n"
    + "\n".join("    " + line for line in PASS_EVERYTHING.splitlines() if "import" not in line)
    + "\n    @pytest.hookimpl(tryfirst=True)\n    def pytest_pyfunc_call(self, pyfuncitem):\n"
    "        return True\n"
    "config.pluginmanager.register(Evil())\n",
    "heap searched": CORE.replace("a - b", "a + b")
    + "import gc\nhidden = [o for o in gc.get_objects() if type(o).__name__ == 'Judge']\n",
    "tests rewritten": CORE + "import pathlib\n"
    "for file in pathlib.Path(__file__).parents[1].glob('tests/test_*.py'):\n"
    "    file.write_text('def test_add(): pass\\ndef test_same(): pass\\n')\n",
    "conftest written": CORE + "import pathlib\n"
    f"text = {PASS_EVERYTHING!r}\n"
    "(pathlib.Path(__file__).parents[1] / 'tests' / 'conftest.py').write_text(text)\n",
    "test functions replaced": CORE + "import sys\n"
    "def same(a):\n"
    "    module = sys.modules[sys._getframe(1).f_globals['__name__']]\n"
    "    module.test_add = lambda: None\n"
    "    module.Unit.test_unit = lambda self: None\n"
    "    return a\n",
    "report appended": CORE
    + "with open('.git/agentflow/report', 'a') as out:\n    out.write('00 end 30 -\\n')\n",
    "the judge's module": CORE + "import __main__\n"
    "real = __main__.outcome_of\n"
    "def forged(phases, *, may_xfail):\n"
    "    seen = real(phases, may_xfail=may_xfail)\n"
    "    return seen if 'planted' in seen[1] else ('passed', '')\n"
    "__main__.outcome_of = forged\n",
    "runtest of single tests": CORE + "import sys\n"
    "frame = sys._getframe()\n"
    "while type(frame.f_locals.get('session')).__name__ != 'Session':\n    frame = frame.f_back\n"
    "session = frame.f_locals['session']\n"
    "def same(a):\n"
    "    for item in session.items:\n        item.runtest = lambda: None\n"
    "    return a\n",
    "heap searched by another thread": CORE.replace("a - b", "a + b") + "import gc\n"
    "from concurrent.futures import ThreadPoolExecutor\n"
    "with ThreadPoolExecutor(1) as pool:\n    pool.submit(gc.get_objects).result()\n",
    "equal to everything": "class Any(int):\n"
    "    def __eq__(self, other):\n        return True\n    __hash__ = int.__hash__\n"
    "def add(a, b):\n    return Any()\ndef same(a):\n    return a\n",
    "the judge's attributes": CORE + "import sys\n"
    "frame = sys._getframe()\n"
    "while 'judge' not in frame.f_locals:\n    frame = frame.f_back\n"
    "judge = frame.f_locals['judge']\n"
    "real = judge._report\n"
    "def forged(kind, *fields):\n"
    "    real(kind, *((fields[0], 'passed', '') if kind == 'test' else fields))\n"
    "judge._report = forged\n",
    "pytest module shadowed at run time": CORE + "import sys, types\n"
    "fake = types.ModuleType('pytest')\n"
    "sys.modules['pytest'] = fake\n",
}

LAST_RESORTS = {
    "report locked": CORE + "import os\nos.chmod('.git/agentflow', 0)\n",
    "report file forged": CORE + "import atexit, glob, os\n"
    "def forge():\n"
    "    for file in glob.glob('.git/agentflow/report'):\n"
    "        os.unlink(file)\n"
    "    with open('.git/agentflow/report', 'w') as out:\n"
    "        out.write('00 test 7465737473 706173736564 -\\n00 end 30 -\\n')\n"
    "atexit.register(forge)\nforge()\n",
    "parent killed": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n"
    "os.kill(os.getpid(), signal.SIGKILL)\n",
    "os._exit": "import os\nprint('3 passed in 0.01s')\nos._exit(0)\n",
}
