"""Turns of processes of one host that are about to put an object into the same directory.

Only a hint: correctness rests on put-if-absent alone. A process that was stopped must not stop the others, so each wait
is bounded, and whoever waited that long goes on without its turn.

**Offers.** Who has to wait leaves a file, its offer: bytes of which another, whose turn it is, may make a part of its
own object. It holds a lock of the file until it goes on. Whoever has the turn takes an offer by renaming it, so that it
is taken once or withdrawn, and only while its lock is held: offers of the dead are never taken. The names of offers are
those of temporary files, so that nobody lists them and cleaning removes what a crash leaves.

**Bells.** Who waits with an offer is woken by whoever ends a turn, through a socket that has the offer's name in the
abstract namespace of Linux: each look costs 40 us of a processor, and there was one every 0.2 ms. Where no bell rings
(another network namespace, another system, an older version) there are the looks.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field

from streamhouse_spark.core.clock import Clock, World
from streamhouse_spark.core.fork_safety import close_lock_file, open_lock_file
from streamhouse_spark.core.lazy_dataclass import dataclass

WAIT_MS_MAX = 50
POLL_MS = 0.2
BELL_MS = 2.0
"""Time after which one that waits for its bell looks whether it missed it."""
DEAF_MAX = 3
"""Turns in a row that took an offer and ended without its bell, after which a process tries it now and then only."""
DEAF_TRIES = 16
COMPANY_MS_MAX = 2.0
"""Time for which the one whose turn it is waits for the offers of as many as were there in the turn before."""
OFFERS = ".tmp-offers"
_OFFERED, _TAKEN, _MADE = ".tmp-offered-", ".tmp-taken-", ".tmp-made-"


@dataclass(eq=False, slots=True)
class LocalCommitLock:
    """The turn of one thread. `take` and the rest belong to it alone."""

    directory: str
    world: World
    file: int | None = None
    """The file that is locked. It holds the number of others who were there in the turn before."""
    was_taken: bool = False
    has_asked: bool = False
    """Whether offers were asked for in this turn."""
    _taken: list[str] = field(default_factory=list)

    def take(self) -> list[bytes]:
        """Return the offers of those who wait. They go on when this turn's block has ended."""
        if self.file is None:
            return []
        folder, self.has_asked = f"{self.directory}/{OFFERS}", True
        self._wait_for_company(folder)
        return [data for name in _list_offers(folder) if (data := self._take(folder, name)) is not None]

    def _take(self, folder: str, name: str) -> bytes | None:
        claimed = f"{folder}/{_TAKEN}{name.removeprefix(_OFFERED)}"
        try:
            os.replace(f"{folder}/{name}", claimed)
        except OSError:  # withdrawn, or taken by one who goes on without its turn
            return None
        self._taken.append(claimed)
        try:
            file = open_lock_file(claimed, 0o666)
        except OSError:
            return None
        try:
            return None if _try_lock(file) else os.read(file, os.fstat(file).st_size)  # locked: its process lives
        except OSError:
            return None
        finally:
            with suppress(OSError):
                close_lock_file(file)

    def _wait_for_company(self, folder: str) -> None:
        if self.file is None or not (company := os.pread(self.file, 4, 0)):
            return
        clock, waited_ms = self.world.clock, 0.0
        while waited_ms < COMPANY_MS_MAX and len(_list_offers(folder)) < int.from_bytes(company):
            clock.sleep_ms(POLL_MS)
            waited_ms += POLL_MS

    def end(self) -> None:
        """Let the next have its turn."""
        file, self.file = self.file, None
        if file is not None:
            offered = _list_offers(f"{self.directory}/{OFFERS}")
            with suppress(OSError):  # the object may be there already
                if self.has_asked:
                    os.pwrite(file, (len(self._taken) + len(offered)).to_bytes(4), 0)
                close_lock_file(file)
            _ring([name.removeprefix(_OFFERED) for name in offered], at_most=1)

    def release(self) -> None:
        """Let those go on whose offers were taken."""
        self.end()
        for claimed in self._taken:
            with suppress(OSError):
                os.unlink(claimed)
        _ring([os.path.basename(claimed).removeprefix(_TAKEN) for claimed in self._taken])


class LocalCommitLocks:
    """The turns of one process."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._mine = threading.local()
        self._num_deaf = 0

    def __reduce__(self) -> tuple[type[LocalCommitLocks], tuple[World]]:
        return LocalCommitLocks, (self._world,)  # turns are a process's own

    @contextmanager
    def turn(self, path: str, offer: Callable[[], bytes | None] | None) -> Iterator[LocalCommitLock]:
        """Hold the lock of the file in the block, or until `end`. ``offer`` is asked for bytes if others have it."""
        turn = LocalCommitLock(os.path.dirname(path), self._world)
        turns = self._turns
        try:
            turns.append(turn)
            with suppress(OSError):  # the put that follows meets it too
                turn.file = open_lock_file(path, 0o666)
                if not _try_lock(turn.file):
                    self._wait(turn, turn.file, offer() if offer is not None else None)
            yield turn
        finally:
            turns.remove(turn)
            turn.release()

    def end(self, directory: str) -> None:
        """End this thread's turns in a directory: its object is to be seen there."""
        for turn in self._turns:
            if turn.directory == directory:
                turn.end()

    @property
    def _turns(self) -> list[LocalCommitLock]:
        if not hasattr(self._mine, "turns"):
            self._mine.turns = []
        turns: list[LocalCommitLock] = self._mine.turns
        return turns

    def _wait(self, turn: LocalCommitLock, file: int, offer: bytes | None) -> None:
        """Wait for the turn, or for the end of another's that has taken the offer."""
        clock = self._world.clock
        until_ms = clock.boot_ms() + WAIT_MS_MAX
        if offer is None:
            while not _try_lock(file) and clock.boot_ms() < until_ms:
                clock.sleep_ms(POLL_MS)
            return
        name = self._world.ids.new_uuid()
        with self._bell(name) as bell, self._offer(turn.directory, offer, name) as (offered, claimed):
            while os.path.exists(offered) and not _try_lock(file) and clock.boot_ms() < until_ms:
                bell.wait(clock)
            try:
                os.unlink(offered)
            except OSError:  # taken; where that is not sure, it counts as such
                turn.was_taken = True
                turn.end()
                while os.path.exists(claimed) and clock.boot_ms() < until_ms:
                    bell.wait(clock)
                if bell.has_rung:
                    self._num_deaf = 0
                elif bell.has_waited and clock.boot_ms() < until_ms:  # whoever takes an offer rings its bell
                    self._num_deaf += 1

    @contextmanager
    def _bell(self, name: str) -> Iterator[_WakeupSocket]:
        bell = _WakeupSocket(name if self._num_deaf % DEAF_TRIES < DEAF_MAX else None)
        try:
            yield bell
        finally:
            bell.close()

    @contextmanager
    def _offer(self, directory: str, offer: bytes, name: str) -> Iterator[tuple[str, str]]:
        folder = f"{directory}/{OFFERS}"
        temporary, offered, claimed = (f"{folder}/{form}{name}" for form in (_MADE, _OFFERED, _TAKEN))
        with suppress(FileExistsError):
            os.mkdir(folder)
        file = open_lock_file(temporary, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            view = memoryview(offer)
            while view.nbytes:
                view = view[os.write(file, view) :]
            os.replace(temporary, offered)
            yield offered, claimed
        finally:
            for path in (temporary, offered, claimed):
                with suppress(OSError):
                    os.unlink(path)
            with suppress(OSError):
                close_lock_file(file)


class _WakeupSocket:
    """The bell of one offer. It only says when to look."""

    def __init__(self, name: str | None) -> None:
        """Make the bell of an offer. There is none without a name, and where the system has no such sockets."""
        self.has_waited = self.has_rung = False
        self._socket: socket.socket | None = None
        with suppress(OSError):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if name is not None else None
            try:
                if name is not None and sock is not None:
                    sock.bind(_address(name))
                    sock.settimeout(BELL_MS / 1000)
                    self._socket, sock = sock, None
            finally:
                if sock is not None:
                    sock.close()

    def wait(self, clock: Clock) -> None:
        """Wait until it rings, or for a moment."""
        self.has_waited = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.recv(1)
                self.has_rung = True
                return
        clock.sleep_ms(POLL_MS)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def _ring(names: Sequence[str], at_most: int | None = None) -> None:
    """Ring the bells of these offers, as far as they are there; of all, or of ``at_most``."""
    if not names:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ringing:
        ringing.setblocking(False)
        num_rung = 0
        for name in names:
            with suppress(OSError):  # its owner has gone on, or died
                ringing.sendto(b"\0", _address(name))
                num_rung += 1
            if num_rung == at_most:
                return


def _address(name: str) -> str:
    return f"\0streamhouse-{name}"


@contextmanager
def only_process(path: str | None) -> Iterator[bool]:
    """Hold the lock of the file ``path`` in the block, made if absent and removed afterwards, unless another process of
    this host does, or another thread. Gives whether no other is in such a block, as far as it is known; it is always so
    without a path.

    Only a hint: a file that somebody removes is another one for whoever comes next.
    """
    file: int | None = None
    is_alone = True
    try:
        if path is not None:
            with suppress(OSError):
                file = open_lock_file(path, 0o666)
                is_alone = _try_lock(file)
        yield is_alone
    finally:
        if file is not None and path is not None:
            if is_alone:
                with suppress(OSError):
                    os.unlink(path)
            with suppress(OSError):
                close_lock_file(file)


def _list_offers(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.startswith(_OFFERED))
    except OSError:
        return []


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
