"""Instances of models in the slots of nodes: launched servers that load, serve and are unloaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from serving_gym.envs.interface.sharing import InstanceStatus, SharedModel, SharingSetting
from serving_gym.envs.live.launch_settings import LaunchSettings
from serving_gym.envs.live.transitions import Slot, SlotState


@dataclass
class Instance:
    """What is in a slot.

    Attributes:
        model: Index into `SharingSetting.models`.
        kv_bytes: Its KV pool, for as long as it lives.
        status: LOADING, SERVING or UNLOADING.
        begun_s: When it took this status, seconds of the run.
        idle_since_s: Since when it serves without a request; infinite where it does not.
        queue: Rows that wait until it serves, oldest first.
        finished: Whether requests of it have ended since the policy looked.
    """

    model: int
    kv_bytes: int
    status: InstanceStatus
    begun_s: float
    idle_since_s: float = float("inf")
    queue: list[int] = field(default_factory=list)
    finished: bool = False


class Instances:
    """The slots of all nodes; slot i is on node i // slots_per_node.

    Args:
        setting: Nodes and models.
        slots: Places for servers.
        settings_of: How a model is launched on a node, without a word about its KV pool.
        refuses: Why a slot may not be reconfigured now, or nothing.
        note: Told the slot that is being reconfigured.

    Attributes:
        here: What is in each slot; None: nothing.
        releases: Changes that may have brought room for each model, and for all (`envs.interface.sharing.Retry`).
        losses: Instances that died, or did not come up.
    """

    def __init__(
        self,
        setting: SharingSetting,
        slots: Sequence[Slot],
        settings_of: Callable[[SharedModel, int], LaunchSettings],
        refuses: Callable[[int], str],
        note: Callable[[int], None],
    ) -> None:
        self.setting, self.slots, self.settings_of = setting, slots, settings_of
        self.refuses, self.note = refuses, note
        self.begin()

    def begin(self) -> None:
        """Forgets everything: all slots are empty."""
        self.here: list[Instance | None] = [None] * len(self.slots)
        self._last = [-1] * len(self.slots)  # model that each slot has, or had
        self.releases = [0] * (len(self.setting.models) + 1)
        self.losses = 0

    def on_node(self, node: int) -> range:
        """Slots of a node."""
        width = self.setting.slots_per_node
        return range(node * width, (node + 1) * width)

    def held_bytes(self, node: int) -> int:
        """Memory that instances of a node take."""
        there = [self.here[i] for i in self.on_node(node)]
        return sum(
            self.setting.models[instance.model].weights_bytes + instance.kv_bytes
            for instance in there
            if instance is not None
        )

    def load(self, model: int, node: int, kv_bytes: int, now_s: float) -> tuple[int, str]:
        """Begins to load an instance; its slot, and why it could not be, or nothing.

        A server of the model that sleeps on the node with a pool that is large enough is woken.

        Args:
            model: Index into `SharingSetting.models`.
            node: Where.
            kv_bytes: Its KV pool.
            now_s: Seconds of the run.
        """
        own = self.setting.models[model]
        if not 0 <= node < self.setting.num_nodes:
            return -1, f"there is no node {node}, there are {self.setting.num_nodes}"
        if kv_bytes < own.kv_bytes_per_token * self.setting.block_tokens:
            return -1, "a KV pool must hold a block at least"
        free = [i for i in self.on_node(node) if self.here[i] is None]
        if not free:
            return -1, "the node has no empty slot"
        memory = int(self.setting.memory_bytes[node]) - self.held_bytes(node)
        if own.weights_bytes + kv_bytes > memory:
            return -1, "the node has no room for an instance of the model"
        wanted = replace(self.settings_of(own, node), kv_bytes=kv_bytes)
        slot = min(free, key=lambda i: (self._cost(i, model, wanted), i))
        refused = self.refuses(slot) or self._order(slot, model, wanted)
        if refused:
            return -1, refused
        self.note(slot)
        self._last[slot] = model
        self.here[slot] = Instance(model, kv_bytes, InstanceStatus.LOADING, now_s)
        self.releases[model] += 1
        return slot, ""

    def _cost(self, i: int, model: int, wanted: LaunchSettings) -> int:
        """How much is to be done until a slot serves: it wakes, starts, or ends another that sleeps and starts."""
        if self.slots[i].state is not SlotState.ASLEEP:
            return 1
        return 0 if self._can_wake(i, model, wanted) else 2

    def _can_wake(self, i: int, model: int, wanted: LaunchSettings) -> bool:
        """Whether the server that sleeps in a slot is the one that is wanted."""
        pool = self.slots[i].server.settings.kv_bytes or 0
        return self._last[i] == model and pool >= (wanted.kv_bytes or 0)

    def _order(self, i: int, model: int, wanted: LaunchSettings) -> str:
        slot = self.slots[i]
        if slot.state is not SlotState.ASLEEP:
            slot.server.settings = wanted
            return slot.start()
        return slot.wake() if self._can_wake(i, model, wanted) else slot.relaunch(wanted)

    def unload(self, i: int, has_requests: bool, now_s: float) -> str:
        """Begins to unload an instance without requests; returns why not, or nothing."""
        instance = self.here[i] if 0 <= i < len(self.here) else None
        if instance is None or instance.status is InstanceStatus.UNLOADING:
            return "the instance is empty or being unloaded"
        if has_requests:
            return "the instance still has requests"
        if instance.status is not InstanceStatus.SERVING:
            return "the instance is not serving: an operation on it is under way"
        slot = self.slots[i]
        sleeps = slot.server.settings.sleep_mode
        refused = self.refuses(i) or (slot.sleep() if sleeps else slot.stop())
        if not refused:
            self.note(i)
            instance.status, instance.begun_s = InstanceStatus.UNLOADING, now_s
            instance.idle_since_s = float("inf")
        return refused

    def vacate(self, i: int) -> None:
        """A slot is empty."""
        instance = self.here[i]
        assert instance is not None
        self.here[i] = None
        self.releases[instance.model] += 1
        self.releases[-1] += 1
