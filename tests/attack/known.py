"""What is not found yet, by the number of the issue's list; an entry goes with its item."""

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
    # Not ours to find: the formats have no checksums, or nothing says what should be there.
    Known("npy", "wrong", r"^npy/"),
    Known("foreign", "wrong", r"^arrayrecord/.*stepwell\.json"),
    Known("unlisted", "wrong", r"^(cached|shards)/.*shards\.json"),
    # Items of the list.
    Known("1", "wrong|lost", r"^(sharded-)?steps/killed .*metadata\.db-wal"),
    Known("1", "wrong|lost", r"^replay/killed .*sqlite-wal"),
    Known("5", "hang", r"^replay/\w+ (append|reopen) .*run\.h5"),
    Known("12", "wrong", r"^(sharded-)?steps/.*steps\w*\.npy"),
    Known("12", "wrong", r"^shards/.*\.shard"),
    Known("12", "wrong", r"^rowstate/.*(journal|there|values)"),
    Known("13", "wrong", r"^(sharded-)?steps/.*metadata\.db"),
    Known("13", "wrong", r"^replay/.*telemetry\.sqlite"),
    Known("15", "error", r"^replay/", r"KeyError|without a path"),
    Known("17", "error", r"^records/.*pipe:chunk( |$)", "NotADirectoryError"),
    Known("19", "crash", r"^(records|rowstate)/\w+ (later|refresh) .*cut:", "SIGBUS"),
    Known("22", "error", r"^(records|rowstate)/.*grow:journal", "MemoryError"),
)


def known(case: Case, outcome: str, detail: str) -> str | None:
    """The number of the item that a failure belongs to."""
    found = (each.item for each in KNOWN if each.covers(case, outcome, detail))
    return next(found, None)
