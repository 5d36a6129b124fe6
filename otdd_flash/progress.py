"""Progress on stderr, in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(title: str, *, enabled: bool) -> Iterator[Callable[[str, int, float], None]]:
    """A bar that counts passes and shows the worst marginal error; a no-op where not ``enabled``.

    Yields:
        A callback of (stage, passes done, worst marginal error).
    """
    if not enabled:
        yield lambda stage, passes, error: None
        return
    from tqdm import tqdm

    with tqdm(desc=title, unit=" passes", leave=False) as bar:

        def show(stage: str, passes: int, error: float) -> None:
            bar.update(passes - bar.n)
            bar.set_postfix_str(f"{stage}, marginal error {error:.1e}")

        yield show


@contextmanager
def counter(title: str, total: int, *, enabled: bool) -> Iterator[Callable[[], None]]:
    """A bar over ``total`` items; a no-op where not ``enabled`` or where there are none.

    Yields:
        A callback, once an item.
    """
    if not enabled or total == 0:
        yield lambda: None
        return
    from tqdm import tqdm

    with tqdm(desc=title, total=total, leave=False) as bar:

        def step() -> None:
            bar.update()

        yield step
