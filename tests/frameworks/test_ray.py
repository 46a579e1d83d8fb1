"""Ray Train's workers around our loaders."""

import pytest

from tests import SANITIZED
from tests.frameworks.conftest import Launch
from tests.frameworks.notes import EVEN, Seen, check_epochs, plain

pytestmark = pytest.mark.skipif(SANITIZED, reason="Ray's processes take minutes to begin")


@pytest.fixture
def seen(launch: Launch) -> Seen:
    return launch("ray_program")


@pytest.mark.row("before")
@pytest.mark.parametrize("name", ["Loader", "Loader without a group"])
def test_workers_have_their_shares(seen: Seen, name: str) -> None:
    ranks = seen.rows(name)
    check_epochs(ranks)
    assert ranks == [[plain(0, rank, 2), plain(1, rank, 2)] for rank in range(2)]


@pytest.mark.row("before")
def test_repr_names_ray(seen: Seen) -> None:
    for rank, (text,) in enumerate(seen.rows("repr")):
        assert "ray" in text.lower().split(f"rank={rank} of 2")[1]


@pytest.mark.row("before")
def test_an_actor_does_not_have_the_rank_of_its_node(seen: Seen) -> None:
    assert "rank=0 of 1 (one process)" in seen("actor", ranks=1)[0]


@pytest.mark.row("attributes")
def test_prepare_data_loader(seen: Seen) -> None:
    check_epochs(seen.rows("prepare_data_loader"), EVEN)
