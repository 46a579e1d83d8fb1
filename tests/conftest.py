"""How the tests run: hypothesis' profile, and the child processes that they share."""

import gc
import multiprocessing
import shutil
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests import scaled

if TYPE_CHECKING:
    from tests.buckets import Bucket

settings.register_profile(
    "stepwell",
    deadline=None,  # other processes of the machine are not our subject
    print_blob=True,
    max_examples=scaled(100, smallest=20),
    suppress_health_check=[
        # Sources do not change when they are read, so examples may share one,
        HealthCheck.function_scoped_fixture,
        # and every source sits the exam of SourceContract.
        HealthCheck.differing_executors,
    ],
)
settings.load_profile("stepwell")

WAYS = ("spawn", "forkserver")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What was imported stays, torch and all: no collection in a test is to look at it again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # modules are taken apart at exit


@pytest.fixture(scope="session")
def children() -> Iterator[dict[str, ProcessPoolExecutor]]:
    """One process for each way to start one: they stay, in whatever order the tests come."""
    with ExitStack() as stack:
        made = {}
        for way in WAYS:
            context = multiprocessing.get_context(way)
            made[way] = stack.enter_context(ProcessPoolExecutor(1, mp_context=context))
        yield made


@pytest.fixture(params=WAYS)
def child(
    request: pytest.FixtureRequest, children: dict[str, ProcessPoolExecutor]
) -> ProcessPoolExecutor:
    """A process that shares nothing with this one: what it works on has been pickled."""
    return children[request.param]


@pytest.fixture(scope="module")
def server() -> Iterator["Bucket"]:
    """A bucket behind a proxy."""
    from tests.buckets import bucket  # most tests need no server, nor what it needs

    with bucket() as made:
        yield made


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the bucket, in the environment, where commands find them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")


@pytest.fixture
def s3(server: "Bucket") -> "Bucket":
    """The same, as if nobody had asked for anything."""
    server.proxy.forget()
    return server


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """A folder where a sync costs nothing, for tests that write a thousand times."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(prefix="stepwell-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)
