"""jax.distributed and shardings over several devices."""

import pytest

from tests.frameworks.conftest import Launch
from tests.frameworks.jax_program import N
from tests.frameworks.notes import BATCH, Seen, check_epochs, plain


@pytest.fixture
def seen(launch: Launch) -> Seen:
    return launch("jax_program")


@pytest.mark.row("before")
def test_a_loader_made_before_initialize_has_its_share(seen: Seen) -> None:
    ranks = seen.rows("loader before initialize")
    check_epochs(ranks, N)
    assert ranks == [[plain(e, rank, 2, n=N) for e in range(2)] for rank in range(2)]
    for rank, (text,) in enumerate(seen.rows("repr")):
        assert "jax" in text.lower().split(f"rank={rank} of 2")[1]


@pytest.mark.row("tail")
@pytest.mark.parametrize(("name", "world"), [("four devices", 1), ("two processes", 2)])
def test_the_last_batch_fits_the_sharding(seen: Seen, name: str, world: int) -> None:
    got = [row for rank in seen.rows(name, world) for row in rank]
    assert sorted(set(got)) == list(range(N))
    assert len(got) - N < 4  # rows that fill up the last batch, fewer than devices
    ranks = seen.rows(f"{name}, masked", world)
    check_epochs([epochs for _, *epochs in ranks], N)
    for shapes, *_ in ranks:
        assert shapes == [[BATCH * world]] * len(shapes)


@pytest.mark.row("resume")
def test_a_state_of_two_processes_is_resumed_exactly(seen: Seen) -> None:
    for rank, (middle, end) in enumerate(seen.rows("an exact resume")):
        assert middle == [plain(0, rank, 2, n=N, skip=3), plain(1, rank, 2, n=N)]
        assert end == [plain(1, rank, 2, n=N), plain(2, rank, 2, n=N)]
    for alone in seen.rows("a resume in a world of one"):
        assert alone == plain(0, n=N)[2 * 3 * BATCH :]


@pytest.mark.row("resume")
@pytest.mark.parametrize("world", [1, 4])
def test_two_processes_go_on_where_another_world_was(seen: Seen, world: int) -> None:
    ranks = seen.rows(f"a resume out of a world of {world}")
    assert sorted(ranks[0] + ranks[1]) == sorted(plain(0, n=N)[3 * BATCH * world :])


@pytest.mark.row("tail")
def test_two_processes_read_blocks_of_their_own(seen: Seen) -> None:
    ranks = seen.rows("blocks of one's own")
    check_epochs(ranks, N)
    for epoch in range(2):
        zero, one = ({row // 10 for row in rank[epoch]} for rank in ranks)
        assert len(zero & one) <= 2 * (4 - 1)  # those of two windows that do not divide
        assert len(zero | one) == 100
