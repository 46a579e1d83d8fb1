"""The runs before and after one, in the order and by the filter of a list of runs."""

from typing import Any

from stepwell.viewer.listing import TIMEOUT_S, has_sql, list_runs, order, safe
from stepwell.viewer.shelf import Entry


def neighbours(
    entry: Entry, key: str, *, where: str = "", sort: str = "", descending: bool = False
) -> dict[str, Any]:
    """The keys before and after `key`, its position, and how many runs the list has.

    A run that the filter leaves out has no position. Raises what `list_runs` does.
    """
    listed = list_runs(entry, where=where, sort=sort, descending=descending, limit=0)
    store, count = entry.store, listed["count"]
    if not has_sql(store) or "damage" in listed:
        at = int(key) if key.isdecimal() else -1
        near = (at - 1 if at > 0 else None, at + 1 if at + 1 < count else None, at)
        found: list[tuple[Any, ...]] = [near] if 0 <= at < count else []
    else:
        name = '"' + store.runs_key.replace('"', '""') + '"'
        ordered = order(store, listed["columns"], sort, descending)
        chosen = f"WHERE (\n{where}\n)" if where.strip() else ""
        found = store.query(
            f"SELECT before, after, place FROM (SELECT {name} AS this, "
            f"LAG({name}) OVER list AS before, LEAD({name}) OVER list AS after, "
            f"ROW_NUMBER() OVER list - 1 AS place FROM {store.runs_table} {chosen} "
            f"WINDOW list AS ({ordered})) WHERE this = ?",
            key,
            timeout_s=TIMEOUT_S,
        ).rows
    before, after, place = found[0] if found else (None, None, None)
    return {"previous": safe(before), "next": safe(after), "position": place, "count": count}
