"""Mistakes about appends that wait together, and the tests that find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from faults.group_appends import AppendTogether, the_same_transaction_twice
from faults.plants import patched, plant
from faults.scenarios import prepared
from faults.sweep import sweep_scenario
from faults.turns import in_turns
from streamhouse_spark.log.commits import commit_log, group
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.group import Group
from streamhouse_spark.log.commits.record import Record
from streamhouse_spark.log.commits.state import TableState, fold
from streamhouse_spark.log.commits.waiting import Calls, Committed, Waiting


def appends_together() -> None:
    run = prepared(scenario := AppendTogether())
    scenario.work(run)
    run.check()


def appends_together_and_an_interrupt() -> None:
    """The thread that commits for all is interrupted behind the put, before it notes an answer."""
    run = prepared(AppendTogether())
    table, landed, interrupts = run.open(), Calls.landed, [KeyboardInterrupt()]
    batches = [run.history.new_batch(2) for _ in range(3)]

    def interrupted(calls: Calls, outcomes: Mapping[str, Committed]) -> None:
        if outcomes and interrupts:
            raise interrupts.pop()
        landed(calls, outcomes)

    with patched((Calls, "landed", interrupted)):
        answers = in_turns([lambda b=b: run.history.append(table, b) for b in batches])
    assert [type(answer) for answer in answers].count(KeyboardInterrupt) == 1
    run.check()


@plant
def a_neighbours_answer_is_told() -> Iterator[None]:
    original = group.outcomes

    def swapped(before: TableState, state: TableState, record: Record) -> Iterator[tuple[str, Committed]]:
        found = list(original(before, state, record))
        answers = [answer for _, answer in found]
        return zip((attempt for attempt, _ in found), answers[1:] + answers[:1], strict=True)

    with patched((commit_log, "outcomes", swapped)):
        yield


@plant
def attempts_are_judged_on_the_state_before_the_record() -> Iterator[None]:
    """Two of one transaction in a group: neither knows the other."""
    original = Group.state.fget
    assert original is not None

    def state(self: Group) -> TableState:
        return replace(original(self), transactions=self._known)  # type: ignore[attr-defined]

    def init(self: Group, before: TableState, blank: Record) -> None:
        made(self, before, blank)
        self._known = before.transactions  # type: ignore[attr-defined]

    made = Group.__init__
    with patched((Group, "state", property(state)), (Group, "__init__", init)):
        yield


@plant
def a_refusal_is_the_answer_of_all() -> Iterator[None]:
    original = CommitLog._judge

    def judge(self: CommitLog, call: Waiting, found: Group, before: TableState, time_ms: int) -> bool:
        known, taken = len(found.members), original(self, call, found, before, time_ms)
        if known and len(found.members) == known and not call.is_done:
            for member in found.members:
                member.error = commit_log.CommitConflictError("one of the record is refused; nothing was written")
            found.members.clear()
        return taken

    with patched((CommitLog, "_judge", judge)):
        yield


@plant
def answers_come_before_the_put() -> Iterator[None]:
    original = CommitLog._put_group

    def put_group(self: CommitLog, found: Group, before: TableState) -> None:
        coming = found.record("f" * 32)
        state = fold(before, replace(coming, actions=found.body.actions))
        answers = dict(group.outcomes(before, state, replace(coming, actions=found.body.actions)))
        for member in found.members[1:]:
            member.outcome = answers[member.attempt]
        original(self, found, before)

    with patched((CommitLog, "_put_group", put_group)):
        yield


@plant
def the_state_goes_on_before_the_answers_are_known() -> Iterator[None]:
    def stored(self: CommitLog, before: TableState, record: Record) -> TableState:
        self._state = state = fold(before, record)
        self._calls.landed(dict(group.outcomes(before, state, record)))
        return state

    with patched((CommitLog, "_stored", stored)):
        yield


FINDERS: dict[str, Callable[[], object]] = {
    "a_neighbours_answer_is_told": appends_together,
    "attempts_are_judged_on_the_state_before_the_record": the_same_transaction_twice,
    "a_refusal_is_the_answer_of_all": appends_together,
    "answers_come_before_the_put": lambda: sweep_scenario(AppendTogether(), methods=("put_if_absent",)),
    "the_state_goes_on_before_the_answers_are_known": appends_together_and_an_interrupt,
}
