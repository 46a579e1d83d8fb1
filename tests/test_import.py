"""What `import stepwell` costs, and what missing extras say."""

from importlib.metadata import version

import pytest

import stepwell as sw
from tests import children

EXTRAS = [
    *("torch", "jax", "h5py", "hdf5plugin", "pyarrow", "pandas", "gymnasium", "minari", "obstore"),
    *("array_record", "lz4", "av", "PIL", "nicegui", "ray"),
]
HEAVY = [
    *(*EXTRAS, "typer", "rich", "multiprocessing"),
    *("importlib.metadata", "email", "http", "urllib.request", "asyncio"),
]


def test_import_is_light_and_frameworks_come_when_they_are_asked_for() -> None:
    script = f"""
import sys
import stepwell as sw
print([name for name in {HEAVY} if name in sys.modules])
sw.torch.Loader
print("torch" in sys.modules, "jax" in sys.modules)
"""
    assert children.answer(script).splitlines() == ["[]", "True False"]


def test_commands_begin_light() -> None:
    heavy = [name for name in HEAVY if name not in ("typer", "rich")]
    script = f"""
import sys
from stepwell.cli import main
try:
    main()
except SystemExit as end:
    print(end.code, [name for name in {heavy} if name in sys.modules])
"""
    assert children.answer(script, "--version").splitlines()[-1] == "0 []"
    assert children.answer(script, "--help").splitlines()[-1] == "0 []"


def test_import_does_nothing_else() -> None:
    script = """
import threading, os
before = threading.active_count(), len(os.listdir("/proc/self/task")), os.listdir("/proc/self/fd")
import stepwell
after = threading.active_count(), len(os.listdir("/proc/self/task")), os.listdir("/proc/self/fd")
print(before == after)
"""
    # NumPy's own threads are there before: OPENBLAS starts them when it is imported.
    assert children.answer("import numpy" + script) == "True"


def test_all_names_are_there() -> None:
    assert sw.__all__ == sorted(set(sw.__all__))
    for name in sw.__all__:
        assert hasattr(sw, name)
    assert sw.__version__ == version("stepwell")
    with pytest.raises(AttributeError, match="module 'stepwell' has no attribute 'tensorflow'"):
        sw.tensorflow  # type: ignore[attr-defined]  # noqa: B018


def test_missing_extras() -> None:
    for name in ("torch", "jax", "ray"):
        for how in (f"import stepwell.{name}", f"import stepwell; stepwell.{name}"):
            script = f"""
import sys
sys.modules["{name}"] = None
try:
    {how}
except ImportError as error:
    print(error)
"""
            text = children.answer(script)
            assert text == f"stepwell.{name} needs an extra: pip install 'stepwell[{name}]'"
    script = """
import sys
sys.modules["gymnasium"] = None
import stepwell as sw
try:
    sw.replay.Record
except ImportError as error:
    print(error)
"""
    assert children.answer(script) == "Record needs an extra: pip install 'stepwell[gym]'"
    for module in ("nicegui", "PIL"):
        script = f"""
import sys
sys.modules[{module!r}] = None
import stepwell as sw
try:
    sw.view("nowhere")
except ImportError as error:
    print(error)
"""
        text = children.answer(script)
        assert text == f"{module} needs an extra: pip install 'stepwell[viewer]'"


def test_help_and_completion_without_extras() -> None:
    """Both get every name that a module lists: one of a missing extra is none."""
    script = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS}))
import pydoc, rlcompleter
import stepwell as sw
for module in (sw, sw.replay, sw.game2048, sw.formats, sw.stores):
    assert pydoc.render_doc(module)
complete = rlcompleter.Completer({{"sw": sw}}).complete
print(complete("sw.tor", 0), complete("sw.ReplayW", 0), complete("sw.StepR", 0), "torch" in dir(sw))
"""
    assert children.answer(script) == "None sw.ReplayWriter( sw.StepReader( False"
