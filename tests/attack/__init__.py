"""Stores that somebody damaged, and whatever may be done with them: right data, or one error.

    python -m tests.attack --cases 100000       as `make attack`
    python -m tests.attack --seed 17            one case again, with its traceback
    python -m tests.attack --case "records/killed take flip:journal.zr:30:255"

A seed gives a case (cases.py): a store (targets.py), harm to its files, and a call that follows.
runner.py has the oracle and the processes; known.py what is not found yet, by the issue's numbers.
"""
