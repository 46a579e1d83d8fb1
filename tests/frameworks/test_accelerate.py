"""accelerate and transformers around our loaders, in two processes that torchrun starts."""

import pytest

from tests.frameworks.conftest import Launch
from tests.frameworks.notes import BATCH, EVEN, Seen, check_epochs, plain

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.fixture
def accelerate(launch: Launch) -> Seen:
    return launch("accelerate_program", *TORCHRUN)


@pytest.fixture
def transformers(launch: Launch) -> Seen:
    return launch("transformers_program", *TORCHRUN)


@pytest.mark.row("sharded again")
def test_prepare_of_a_loader(accelerate: Seen) -> None:
    ranks = accelerate.rows("Loader")
    check_epochs(ranks)
    assert ranks == [[plain(0, rank, 2), plain(1, rank, 2)] for rank in range(2)]


@pytest.mark.row("sharded again")
def test_prepare_does_not_share_out_a_share(accelerate: Seen) -> None:
    assert "stepwell.torch.Loader(" in accelerate.refusal("IterableDataset")


@pytest.mark.row("attributes")
def test_batches_are_skipped(accelerate: Seen) -> None:
    for rank, rest in enumerate(accelerate.rows("Loader, skipped")):
        assert rest == [plain(1, rank, 2, skip=3), plain(2, rank, 2)]
    whole, cut = accelerate.rows("DataLoader"), accelerate.rows("DataLoader, skipped")
    for epochs, (rest, after) in zip(whole, cut, strict=True):
        assert rest == epochs[1][3 * BATCH :]
        assert after == epochs[2]


@pytest.mark.row("attributes")
@pytest.mark.parametrize("name", ["DataLoader", "MapDataset"])
def test_prepare_of_torchs_data_loader(accelerate: Seen, name: str) -> None:
    check_epochs(accelerate.rows(name), EVEN)


@pytest.mark.row("attributes")
def test_the_accelerator_saves_and_loads_a_loader(accelerate: Seen) -> None:
    ranks = accelerate.rows("checkpoint")
    assert ranks == [[plain(0, rank, 2), plain(1, rank, 2)] for rank in range(2)]


@pytest.mark.row("attributes")
def test_a_trainer_resumes_a_loader(transformers: Seen) -> None:
    for rank, (once, resumed) in enumerate(transformers.rows("Loader")):
        assert once == [plain(0, rank, 2), plain(1, rank, 2)]
        assert resumed == [plain(0, rank, 2, skip=3), plain(1, rank, 2)]


@pytest.mark.row("batched again")
def test_a_trainer_resumes_a_map_dataset(transformers: Seen) -> None:
    ranks = transformers.rows("MapDataset")
    check_epochs([once for once, _ in ranks], EVEN)
    for once, resumed in ranks:
        assert resumed == [once[0][3 * BATCH :], once[1]]


@pytest.mark.row("batched again")
def test_a_trainer_does_not_batch_batches(transformers: Seen) -> None:
    assert "stepwell.torch.MapDataset(" in transformers.refusal("IterableDataset")
