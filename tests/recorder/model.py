"""What each invocation of a journal is recorded for: the recorder's rules, slowly and plainly.

The journal is what ``wishes.c`` did on one thread. The rules are those of wishes.h and
invocation.h; schedules are asked from relax_trace itself.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from relax_trace.schedules import Action, Schedule

HELD, FAILURES, CYCLES = 1, 4, 8
FAILED, SLOW, CYCLE = 1, 2, 4
NEVER_NS = 10**12  # slower than this nothing is

Notice = tuple[int, int, int, str]  # slot, reason, VM, function


@dataclass
class Wish:
    """What one recording wants of a VM."""

    flags: int
    plan: Schedule | None
    slow_ns: int
    functions: str
    steps: dict[str, int] = field(default_factory=dict)

    def ask(self, function: str) -> Action:
        """What to do with the next invocation of a function, and count it."""
        if self.functions and not fnmatchcase(function, self.functions):
            return Action.SKIP
        step = self.steps.get(function, 0)
        self.steps[function] = step + 1
        return self.plan(step) if self.plan else Action.RECORD


@dataclass
class Invocation:
    """One that was made through the wrapper."""

    vm: int
    function: str
    ticks: int  # just before it began
    around: Invocation | None  # of whatever VM
    left_out: set[int] = field(default_factory=set)
    taken: set[int] = field(default_factory=set)
    last: set[int] = field(default_factory=set)
    first: set[int] = field(default_factory=set)
    armed: bool = False
    code: int = 0
    left: int = 0  # ticks, just after it ended


@dataclass
class VM:
    """A VM as far as the recorder knows it."""

    wishes: dict[int, Wish] = field(default_factory=dict)
    inside: list[Invocation] = field(default_factory=list)
    armed: bool = False

    def arm(self, needed: bool) -> None:
        """At the edge of an outermost invocation, or at rest."""
        self.armed = needed or any(wish.flags & HELD for wish in self.wishes.values())

    def change(self, slot: int, wish: Wish | None) -> None:
        """A recording leaves a wish, the newest one first, or takes it back."""
        rest = {old: kept for old, kept in self.wishes.items() if old != slot}
        self.wishes = rest if wish is None else {slot: wish, **rest}
        if self.inside:
            self.inside[-1].left_out.discard(slot)
        else:
            self.arm(False)

    def enter(self, call: Invocation) -> None:
        """What the wishes make of it."""
        if not self.inside or self.armed:
            left_out = set(self.inside[-1].left_out) if self.inside else set()
            for slot, wish in self.wishes.items():
                if slot not in left_out:
                    self._ask(slot, wish, call)
            call.left_out |= left_out
        if not self.inside:
            self.arm(call.armed)
        self.inside.append(call)

    def _ask(self, slot: int, wish: Wish, call: Invocation) -> None:
        action = wish.ask(call.function)
        call.armed |= action is not Action.SKIP
        if action is Action.SKIP:
            call.left_out.add(slot)
        if action in (Action.RECORD, Action.RECORD_AND_DELIVER):
            call.taken.add(slot)
            if wish.plan and _begins(wish, call.function):
                call.first.add(slot)
        if action is Action.RECORD_AND_DELIVER:
            call.last.add(slot)

    def leave(self) -> list[tuple[int, int]]:
        """The innermost invocation ends; returns the slot and reason of each notice."""
        call = self.inside.pop()
        if not self.inside:
            self.arm(False)
        if not call.armed:
            return []
        told = []
        for slot, wish in self.wishes.items():
            if slot not in call.taken:
                continue
            reason = FAILED * bool(call.code and wish.flags & FAILURES)
            reason |= SLOW * (0 < wish.slow_ns < NEVER_NS)
            reason |= CYCLE * bool(slot in call.last and wish.flags & CYCLES)
            if reason:
                told.append((slot, reason))
        return told


def _begins(wish: Wish, function: str) -> bool:
    """Whether the step that was counted last is the first of its cycle to be recorded."""
    assert wish.plan
    plan, step = wish.plan, wish.steps[function] - 1
    return step % (plan.wait + plan.warmup + plan.active) == plan.wait + plan.warmup


def wish_of(words: list[str]) -> Wish:
    """The rest of a line that says what is wanted, from the flags on."""
    flags, wait, warmup, active, repeat, slow_ns = map(int, words[:6])
    plan = Schedule(wait, warmup, active, repeat) if active else None
    return Wish(flags, plan, slow_ns, words[6])


@dataclass
class Journal:
    """What a thread did: invocations as they began, and notices while the pipe was read."""

    tid: int
    calls: list[Invocation] = field(default_factory=list)
    expected: list[Notice] = field(default_factory=list)
    told: list[Notice] = field(default_factory=list)


def follow(lines: list[str]) -> Journal:
    """Play a journal."""
    journal = Journal(int(lines[0].removeprefix("thread ")))
    vms: defaultdict[int, VM] = defaultdict(VM)
    call: Invocation | None = None
    reads = True
    for line in lines[1:]:
        kind, *words = line.split(" ")
        if kind in ("want", "unwant"):
            wish = wish_of(words[2:]) if kind == "want" else None
            vms[int(words[0])].change(int(words[1]), wish)
        elif kind == "enter":
            call = Invocation(int(words[0]), words[1], int(words[2]), call)
            vms[call.vm].enter(call)
            journal.calls.append(call)
        elif kind == "leave":
            assert call
            call.code, call.left = map(int, words)
            told = vms[call.vm].leave()
            journal.expected += [
                (slot, reason, call.vm, call.function) for slot, reason in told
            ] * reads
            call = call.around
        elif kind == "notice":
            slot, reason, vm, function = words
            journal.told.append((int(slot), int(reason), int(vm), function))
        elif kind == "closed":
            reads = False
    return journal
