"""What nobody can find: where formats have no checksums, or nothing states what should be there."""

import re
from dataclasses import dataclass

from tests.attack.cases import Case


@dataclass(frozen=True)
class Known:
    item: str
    outcome: str
    """How the case ends: "wrong", "error", "hang", "crash", …"""
    cases: str
    """What its line looks like."""
    detail: str = ""

    def covers(self, case: Case, outcome: str, detail: str) -> bool:
        return (
            re.fullmatch(self.outcome, outcome) is not None
            and re.search(self.cases, str(case)) is not None
            and re.search(self.detail, detail) is not None
        )


KNOWN: tuple[Known, ...] = (
    Known("npy", "wrong", r"^npy/"),
    Known("foreign", "wrong", r"^arrayrecord/.*stepwell\.json"),
    Known("unlisted", "wrong", r"^(cached|shards)/.*shards\.json"),
    # SQL reads what the database has; rows are compared with their checksums when they are read.
    Known(
        "query", "wrong", r"^(replay|(sharded-)?steps)/\w+ (query|where) .*(sqlite|metadata\.db)"
    ),
    # Both of what states how much was committed.
    Known("both", "wrong|lost", r"^replay/killed (?=.*sqlite-wal)(?=.*:replay( |/run\.h5|$))"),
    Known("both", "wrong", r"^rowstate/killed (?=.*writer\.lock)(?=.*journal)"),
    Known("both", "wrong", r"^records/.*remove:\w+\.sums"),
)


def known(case: Case, outcome: str, detail: str) -> str | None:
    """The number of the item that a failure belongs to."""
    found = (each.item for each in KNOWN if each.covers(case, outcome, detail))
    return next(found, None)
