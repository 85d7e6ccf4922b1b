"""The metadata file that a lake library was decoding when it met damaged bytes."""

from __future__ import annotations

from collections.abc import Callable


def find_damaged_file(error: Exception, location_of: Callable[[object], str | None], otherwise: str) -> str:
    """Return the file that was being read when the error arose, or ``otherwise``.

    The libraries' errors do not name it, and may come from threads of theirs. But the frames of the error hold the
    value being read: ``location_of`` returns the location of such a value, None for any other. The innermost counts.
    """
    location, place = otherwise, error.__traceback__
    while place is not None:
        for value in place.tb_frame.f_locals.values():
            location = location_of(value) or location
        place = place.tb_next
    return location
