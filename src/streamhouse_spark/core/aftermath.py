"""Work behind a commit point: checkpoints, merging, local caches, pointers that count no longer.

What the call was for is done and everybody sees it, so nothing that fails now may fail the call: who is told of an
error would do it again. All such work is repeated by somebody later, so a failure costs time and is logged, no more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from streamhouse_spark.errors import StreamhouseError


@contextmanager
def after_commit(logger: logging.Logger, what: str, name: object) -> Iterator[None]:
    """Log whatever error ends the block, as "``what`` of ``name``", and go on behind it."""
    try:
        yield
    except StreamhouseError as error:
        logger.warning("%s of %s: the change is stored, this is done later: %s", what, name, error)
    except Exception:  # a disk, a library: none of them is a reason to say that nothing was stored
        logger.warning("%s of %s: the change is stored, this is done later", what, name, exc_info=True)
