"""Memory operations of a node (LLM-Mesh, section 6.3 and figure 9): optimistic budget, pessimistic execution.

Every operation takes time. The budget counts each allocation at the size it is to have, so that what is on its way out
can be promised anew; what runs counts each at the larger of the sizes before and after. What would overflow by the
second count waits in the reservation station, and is looked at again when an operation has given memory back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Verdict(Enum):
    """What becomes of a demand."""

    REJECTED = "rejected"  # the budget does not allow it
    UNCHANGED = "unchanged"  # nothing is to be done
    RESERVED = "reserved"  # in the budget; waits in the reservation station
    EXECUTE = "execute"  # in the budget; begins now


@dataclass
class Allocation:
    """Memory of one instance on the node.

    Attributes:
        held: What it has, or had before the operation that is being executed.
        target: What it is to have.
        executing: Size that the operation under way leads to; None where none is.
    """

    held: float
    target: float
    executing: float | None = None

    @property
    def pessimistic(self) -> float:
        """What it may hold at any moment until what is under way is done."""
        return self.held if self.executing is None else max(self.held, self.executing)


class MemoryOrchestrator:
    """Memory of one node, any unit.

    Loading an instance is a scale-up from nothing, unloading it a scale-down to nothing. Operations of one instance
    execute one after another, as each works on the blocks that the last one leaves; those of several execute together.
    The station is looked through in order of issue, and whatever has come to fit leaves it, out of order.

    Args:
        capacity: What the node has.
    """

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.allocations: dict[int, Allocation] = {}
        self.station: list[int] = []  # instances whose operation waits, in order of issue

    @property
    def budget_used(self) -> float:
        """The optimistic count: what is promised."""
        return sum(own.target for own in self.allocations.values())

    @property
    def tracked(self) -> float:
        """The pessimistic count: what may be held at once."""
        return sum(own.pessimistic for own in self.allocations.values())

    def target(self, instance: int) -> float:
        """What an instance is to have; 0 where it is not here."""
        own = self.allocations.get(instance)
        return own.target if own else 0.0

    def approves(self, instance: int, target: float, freed: float = 0.0) -> bool:
        """Whether the budget would let an instance have a size: the shadow check of section 6.4.

        Args:
            instance: Which; it may be new.
            target: The size.
            freed: What would leave the budget beforehand.
        """
        return self.budget_used - freed - self.target(instance) + target <= self.capacity

    def demand(self, instance: int, target: float) -> Verdict:
        """Asks for a size.

        Args:
            instance: Which; new ones begin with nothing.
            target: Its size to be; 0 takes it off the node.
        """
        own = self.allocations.get(instance) or Allocation(0.0, 0.0)
        if target > own.target and not self.approves(instance, target):
            return Verdict.REJECTED
        self.allocations[instance] = own
        own.target = target
        if instance in self.station:
            self.station.remove(instance)
        if own.executing is None and own.target == own.held:
            self._forget_if_gone(instance)
            return Verdict.UNCHANGED
        return self._issue(instance)

    def complete(self, instance: int) -> list[int]:
        """The operation of an instance is done.

        Returns:
            Instances whose waiting operation begins now, towards their `target`.
        """
        own = self.allocations[instance]
        if own.executing is None:
            raise ValueError(f"instance {instance} has no operation under way")
        own.held, own.executing = own.executing, None
        if own.target != own.held:
            self.station.append(instance)
        self._forget_if_gone(instance)
        return self._look_through()

    def _look_through(self) -> list[int]:
        return [other for other in tuple(self.station) if self._issue(other) is Verdict.EXECUTE]

    def _issue(self, instance: int) -> Verdict:
        own = self.allocations[instance]
        if own.executing is not None:
            return Verdict.RESERVED
        grows = own.target > own.held
        if grows and self.tracked - own.held + own.target > self.capacity:
            if instance not in self.station:
                self.station.append(instance)
            return Verdict.RESERVED
        if instance in self.station:
            self.station.remove(instance)
        own.executing = own.target
        return Verdict.EXECUTE

    def _forget_if_gone(self, instance: int) -> None:
        own = self.allocations[instance]
        if own.held == own.target == 0.0:
            del self.allocations[instance]

    def adopt(self, instance: int, held: float, executing: float | None = None) -> None:
        """Takes down an instance that is there already.

        Args:
            instance: Which.
            held: What it has.
            executing: What the operation under way leads to; None: there is none.
        """
        self.allocations[instance] = Allocation(held, held if executing is None else executing, executing)

    def drop(self, instance: int) -> list[int]:
        """An instance is gone: what it held or was to hold is free.

        Returns:
            Instances whose waiting operation begins now.
        """
        del self.allocations[instance]
        self.station = [other for other in self.station if other != instance]
        return self._look_through()

    def rename(self, old: int, new: int) -> None:
        """An instance goes by another number."""
        self.allocations[new] = self.allocations.pop(old)
        self.station = [new if instance == old else instance for instance in self.station]

    def copy(self) -> MemoryOrchestrator:
        """A copy that shares nothing."""
        other = MemoryOrchestrator(self.capacity)
        other.allocations = {instance: replace(own) for instance, own in self.allocations.items()}
        other.station = list(self.station)
        return other
