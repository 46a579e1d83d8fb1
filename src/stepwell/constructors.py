"""The constructors of loaders: the options they show, and an answer to two sources."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

P = ParamSpec("P")


def one_source(init: Callable[P, None]) -> Callable[P, None]:
    """Have a constructor answer `Loader(data, labels, batch_size=256)` with the line to write."""

    @wraps(init)
    def checked(*args: P.args, **options: P.kwargs) -> None:
        second: Any = args[2] if len(args) > 2 else None
        several = "batch_size" in options or not isinstance(second, str)
        if several and hasattr(second, "__len__") and getattr(second, "ndim", 1) != 0:
            size = options.get("batch_size", 256)
            line = f'{type(args[0]).__name__}({{"data": data, "label": labels}}, batch_size={size})'
            raise TypeError(f"expected one source or a mapping of several, got two: write {line}")
        init(*args, **options)

    return checked


def show_options(cls: type[Any], base: type[Any]) -> None:
    """Have `help` show the options that a constructor hands on to that of `base`, and the answer to
    two sources be the same."""
    own = list(inspect.signature(cls.__init__).parameters.values())
    if own[-1].kind is inspect.Parameter.VAR_KEYWORD:
        taken = {each.name for each in own}
        more = inspect.signature(base.__init__).parameters.values()
        named = [each for each in more if each.kind is inspect.Parameter.KEYWORD_ONLY]
        own[-1:] = [each for each in named if each.name not in taken]
        cls.__init__.__signature__ = inspect.Signature(own, return_annotation=None)
        if [each.name for each in own[1:3]] == ["source", "batch_size"]:
            cls.__init__ = one_source(cls.__init__)
