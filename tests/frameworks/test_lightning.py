"""Lightning's Trainer and Fabric around our loaders, in one process and in two."""

import pytest

from tests.frameworks.conftest import Launch
from tests.frameworks.notes import BATCH, EVEN, HELD_OUT, Seen, check_epochs, plain


@pytest.fixture
def seen(launch: Launch) -> Seen:
    return launch("lightning_program")


@pytest.mark.row("before")
def test_a_loader_made_before_ddp_has_its_share(seen: Seen) -> None:
    ranks = [trained for trained, _ in seen.rows("two processes: fit")]
    check_epochs(ranks)
    assert ranks == [[plain(epoch, rank, 2) for epoch in range(2)] for rank in range(2)]


@pytest.mark.row("fit")
def test_a_validation_after_the_sanity_check_sees_all_rows(seen: Seen) -> None:
    [(trained, validated)] = seen.rows("one process: fit", 1)
    assert trained == [plain(0), plain(1)]
    every = list(range(HELD_OUT))
    assert validated == [every[: 2 * BATCH], every, every]
    for rank, (_, validated) in enumerate(seen.rows("two processes: fit")):
        share = plain(0, rank, 2, n=HELD_OUT, shuffle=False)
        assert len(share) == HELD_OUT / 2
        assert validated[1:] == [share, share]


@pytest.mark.row("fit")
def test_limited_batches_are_the_first_of_each_epoch(seen: Seen) -> None:
    [(trained, validated)] = seen.rows("limits", 1)
    assert trained == [plain(epoch)[: 5 * BATCH] for epoch in range(4)]
    assert validated == [list(range(2 * BATCH))] * 5


@pytest.mark.row("fit")
def test_overfit_batches_are_the_same_ones(seen: Seen) -> None:
    assert seen.rows("overfit", 1) == [[list(range(2 * BATCH))] * 3]


@pytest.mark.row("resume")
@pytest.mark.parametrize(("name", "world"), [("one process", 1), ("two processes", 2)])
def test_a_fit_is_resumed_exactly(seen: Seen, name: str, world: int) -> None:
    ends = seen.rows(f"{name}: resume from an epoch's end", world)
    assert ends == [[plain(epoch, rank, world) for epoch in (2, 3)] for rank in range(world)]
    middles = seen.rows(f"{name}: resume in an epoch", world)
    assert middles == [[plain(epoch, rank, world) for epoch in range(3)] for rank in range(world)]


@pytest.mark.row("attributes")
@pytest.mark.parametrize("name", ["DataLoader", "Fabric"])
def test_a_torch_data_loader_is_rebuilt_for_two_processes(seen: Seen, name: str) -> None:
    check_epochs(seen.rows(name), EVEN)
