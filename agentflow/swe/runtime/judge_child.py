"""The judge's end inside the environment: runs pytest and reports what it saw itself.

Started as a file with `python -I`, needs Python 3.8 and pytest 6 or newer, nothing of agentflow.
The code under test shares this process, so nothing here trusts what can be reached from Python:

- the plan, with the key, is read and deleted before anything of the repository is imported;
- the key goes into a blake2b state and is then forgotten; each line of the report carries a tag
  over all lines so far, so lines cannot be added, changed, dropped or moved without the state;
- an outcome counts as passed only if the call raised nothing *and* pytest's report says passed;
- each awaited test has a decoy of the same id that must fail; whoever turns failures into passes
  turns the decoys too;
- the functions and classes of pytest, pluggy, unittest and builtins must be the same ones, with the
  same code, whenever they are looked at; the files of the tests must be the same bytes;
- compiled files in the repository are not looked at;
- the repository's folders join `sys.path` only after pytest and its plugins are loaded.
"""

import hashlib
import json
import os
import sys
import types

TEXT_LIMIT = 4000
"""Characters of a failure's text that are reported."""
STACK = ("_pytest", "pluggy", "pytest", "unittest")
_CODE = (types.FunctionType,)
_WATCHED = (
    types.FunctionType,
    types.BuiltinFunctionType,
    type,
    property,
    staticmethod,
    classmethod,
)


def make_reporter(fd, key):
    """Return `report(kind, *fields)`, which appends one authenticated line to `fd`."""
    state = hashlib.blake2b(key=key, digest_size=16)
    write = os.write

    def report(kind, *fields):
        body = " ".join(
            [kind] + [f.encode("utf-8", "backslashreplace").hex() or "-" for f in fields]
        )
        state.update(body.encode())
        line = ("%s %s\n" % (state.hexdigest(), body)).encode()
        while line:
            line = line[write(fd, line) :]

    return report


# --- what must stay as it was -----------------------------------------------------------------


def make_integrity():
    """Return `changed()`, which yields what was replaced in pytest's stack: its name, and by what."""
    modules = {name: m for name, m in sys.modules.items() if name.split(".")[0] in STACK}
    members, classes = [], []
    for name, module in [*modules.items(), ("builtins", sys.modules["builtins"])]:
        for key, value in list(vars(module).items()):
            if isinstance(value, _WATCHED):
                members.append((vars(module), name, key, value, *_code(value)))
            if isinstance(value, type) and value.__module__.split(".")[0] in STACK:
                classes.append((vars(value), value.__qualname__, set(vars(value))))
                members += [
                    (vars(value), value.__qualname__, inner, member, *_code(member))
                    for inner, member in list(vars(value).items())
                    if isinstance(member, _WATCHED)
                ]
    loaded, absent, tracers = sys.modules, object(), (sys.gettrace(), sys.getprofile())
    gettrace, getprofile = sys.gettrace, sys.getprofile

    def changed():
        for holder, owner, key, value, function, code, defaults in members:
            now = holder.get(key, absent)
            if now is not value:
                yield "%s.%s" % (owner, key), now
            elif function is not None and (
                function.__code__ is not code or function.__defaults__ is not defaults
            ):
                yield "%s.%s" % (owner, key), None
        for holder, owner, names in classes:
            for key in holder:
                if key not in names and isinstance(holder[key], _WATCHED):
                    yield "%s.%s" % (owner, key), holder[key]
        for name in modules:
            if loaded.get(name) is not modules[name]:
                yield name, None
        if (gettrace(), getprofile()) != tracers:
            yield "sys.settrace", None

    return changed


def is_installed(value, root):
    """Whether a replacement is a function of an installed plugin, not of the repository."""
    _, code, _ = _code(value)
    file = code.co_filename if code else "<"
    return not file.startswith("<") and not file.startswith(root + os.sep)


def _code(value):
    """The Python function behind a member, its code and its defaults."""
    function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    if isinstance(function, _CODE):
        return function, function.__code__, function.__defaults__
    return None, None, None


def make_file_check(root, watched):
    """Return `changed(path=None)`: which watched file is not what it was, "" when all are."""
    read, digest, join = open, hashlib.blake2b, os.path.join

    def digest_of(path):
        try:
            with read(path, "rb") as file:
                return digest(file.read()).digest()
        except OSError:
            return b""

    before = {join(root, name): digest_of(join(root, name)) for name in watched}

    def changed(path=None):
        if path is not None and path not in before:
            return path if os.path.basename(path) == "conftest.py" else ""
        for name in before if path is None else (path,):
            if digest_of(name) != before[name]:
                return name
        return ""

    return changed


def watch_for_heap_searches(patched, violated):
    """Note when a patched file searches the heap, where the judge's own state lies."""
    frame_of = sys._getframe  # noqa: SLF001  # the only way to see who asks
    searches = frozenset({"gc.get_objects", "gc.get_referrers", "gc.get_referents"})
    files = frozenset(patched)

    def hook(event, _):
        if event in searches:
            frame = frame_of(1)
            while frame is not None:
                if frame.f_code.co_filename in files:
                    violated.append("%s called by %s" % (event, frame.f_code.co_filename))
                    return
                frame = frame.f_back

    sys.addaudithook(hook)


# --- the plugin -------------------------------------------------------------------------------


def make_plugin(plan, report, files_changed):
    """The pytest plugin; its state lives in closures."""
    import pytest

    root, awaited = plan["root"], frozenset(plan["awaited"])
    coin = hashlib.blake2b(plan["salt"].encode())
    violated, phases, decoys, known_xfail = [], {}, set(), set()
    integrity = []

    def check():
        for look in integrity:
            for name, _ in look():
                violated.append(name)
                return

    def heads():
        coin.update(b".")
        return coin.digest()[0] & 1

    def decoy(item):
        place = {}
        source = "def planted():\n    assert not 'the judge planted this failure'\n"
        exec(compile(source, str(item.fspath), "exec"), place)  # noqa: S102  # own text
        module = item.getparent(pytest.Module) or item.parent
        twin = pytest.Function.from_parent(module, name=item.name, callobj=place["planted"])
        twin._nodeid = item.nodeid  # noqa: SLF001  # a decoy must bear the name of its twin
        decoys.add(twin)
        return twin

    def is_awaited(nodeid):
        return nodeid in awaited or nodeid.split()[0] in awaited

    class Judge:
        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_load_initial_conftests(self):
            integrity.append(make_integrity())
            sys.pycache_prefix = plan["pycache"]
            sys.path[:0] = plan["import_roots"]
            yield

        @pytest.hookimpl(trylast=True)
        def pytest_sessionstart(self):
            """Accept what installed plugins replaced while they were configured; nothing else."""
            replaced = [name for name, now in integrity[0]() if not is_installed(now, root)]
            violated.extend(replaced[:1])
            integrity[:] = [make_integrity()]

        def pytest_collectstart(self, collector):
            if isinstance(collector, pytest.Module):
                changed = files_changed(str(collector.fspath))
                if changed:
                    violated.append(changed)

        def pytest_plugin_registered(self, plugin):
            file = getattr(plugin, "__file__", None)
            if file and os.path.basename(file) == "conftest.py" and files_changed(file):
                violated.append(file)

        def pytest_collectreport(self, report):
            if report.failed:
                tell("collect", report.nodeid, str(report.longrepr)[-TEXT_LIMIT:])

        @pytest.hookimpl(tryfirst=True)
        def pytest_collection_finish(self, session):
            items = []
            for item in session.items:
                if item.get_closest_marker("xfail"):
                    known_xfail.add(item)
                pair = [item]
                if is_awaited(item.nodeid) and isinstance(item, pytest.Function):
                    pair.insert(heads(), decoy(item))
                items += pair
            session.items[:] = items
            integrity.append(make_function_check(items))
            check()

        @pytest.hookimpl(trylast=True)
        def pytest_sessionfinish(self):
            check()

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_protocol(self, item):
            phases[item] = []
            yield
            if is_awaited(item.nodeid):
                check()
            kind = "decoy" if item in decoys else "test"
            status, text = outcome_of(phases.pop(item), item in known_xfail)
            tell(kind, item.nodeid, status, text)

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_makereport(self, item, call):
            raised = call.excinfo is not None
            result = yield
            made = result.get_result()
            if item in phases:
                phases[item].append((call.when, raised, made))

    def tell(kind, *fields):
        report(kind, *fields)

    def finish(code):
        changed = files_changed()
        if changed:
            violated.append(changed)
        report("end", str(int(code)), violated[0] if violated else "")

    watch_for_heap_searches([os.path.join(root, name) for name in plan["patched"]], violated)
    return Judge(), finish


def make_function_check(items):
    """Return `changed()`, which yields each collected test that is another function now."""
    held = []
    for item in items:
        owner = getattr(item, "cls", None) or getattr(item, "module", None)
        name = getattr(item, "originalname", None) or getattr(item, "name", "")
        value = getattr(owner, "__dict__", {}).get(name)
        if isinstance(value, _CODE):
            held.append((owner, name, value, value.__code__))

    def changed():
        for owner, name, value, code in held:
            now = owner.__dict__.get(name)
            if now is not value or value.__code__ is not code:
                yield "test function %s" % name, now

    return changed


def outcome_of(phases, may_xfail):
    """The status and the failure's text of one test, from its setup, call and teardown."""
    for when, raised, made in phases:
        if made.failed or (raised and made.passed):
            return ("failed" if when == "call" else "error"), str(made.longrepr)[-TEXT_LIMIT:]
    calls = [(raised, made) for when, raised, made in phases if when == "call"]
    if any(made.skipped and hasattr(made, "wasxfail") for _, _, made in phases):
        return ("xfailed" if may_xfail else "skipped"), ""
    if any(made.passed and not raised and not hasattr(made, "wasxfail") for raised, made in calls):
        return "passed", ""
    return "skipped", ""


# --- start ------------------------------------------------------------------------------------


def watched_files(root, test_files):
    """The test files and every conftest.py of the repository."""
    found = list(test_files)
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != ".git"]
        if "conftest.py" in files:
            found.append(os.path.relpath(os.path.join(folder, "conftest.py"), root))
    return found


def pytest_arguments(plan):
    """No configuration but the task's own, no cache, whole files, all of them."""
    config = plan["pytest_config"]
    arguments = ["-c", os.path.join(plan["root"], config) if config else os.devnull]
    arguments += ["--rootdir", plan["root"], "-p", "no:cacheprovider", "-q", "--tb=short"]
    arguments += ["--continue-on-collection-errors"]
    for name in plan["plugins"] or ():
        arguments += ["-p", name]
    return arguments + ["--"] + plan["files"]


def main():
    leave = os._exit  # noqa: SLF001  # nothing of the repository may run after the last line
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "plan.json"), encoding="utf-8") as file:
        plan = json.load(file)
    os.unlink(os.path.join(here, "plan.json"))
    plan["root"] = root = os.getcwd()
    plan["pycache"] = os.path.join(here, "pyc")
    plan["import_roots"] = [os.path.normpath(os.path.join(root, p)) for p in plan["import_roots"]]
    os.environ["PYTHONPATH"] = os.pathsep.join(plan["import_roots"])
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTHONSTARTUP", "PYTHONHOME"):
        os.environ.pop(name, None)
    if plan["plugins"] is not None:
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    import unittest  # noqa: F401  # loaded now, so that it is watched

    import pytest

    fd = os.open(os.path.join(here, "report"), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
    report = make_reporter(fd, bytes.fromhex(plan.pop("key")))
    files_changed = make_file_check(root, watched_files(root, plan["files"]))
    plugin, finish = make_plugin(plan, report, files_changed)
    sys.stdout.write(plan.pop("hello") + "\n")
    sys.stdout.flush()
    finish(pytest.main(pytest_arguments(plan), plugins=[plugin]))
    sys.stdout.flush()
    leave(0)


if __name__ == "__main__":
    main()
