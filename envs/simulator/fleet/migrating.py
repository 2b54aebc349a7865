"""Live migration: a decoding request moves to another replica of its endpoint, KV and all, while it goes on decoding.

As Llumnix does it (OSDI 24, section 4.2). KV is append-only, so it is copied in stages: the first copies what is there,
each further one what was computed during the one before. When no more than one iteration's worth is left, the request
leaves the source's batch at the end of an iteration, the rest is copied, and it joins the batch at the destination;
only in this last stage does it stand still. Before each stage the destination keeps blocks for what is to come. If it
has none, or if the request has ended or been preempted meanwhile, or a replica is lost, the migration is broken off and
the request goes on where it is.

What it costs: a stage takes `FleetSpec.migration_stage_s` to set up, and then the KV of its tokens goes over the
replicas' links, which it shares with other migrations and with weights (`links.py`). Decoding goes on at full speed at
both ends meanwhile: Llumnix measures a slow-down of 1 % at most, so none is modelled.

Readings, where the paper leaves them open: copies are counted in tokens, as disaggregated prefill does, and kept in
blocks. With short iterations setting up a stage takes several, so that one iteration's worth is never reached: a stage
that would copy no fewer tokens than the one before is the last as well, but one that is longer than the longest last
stage of Llumnix's released defaults ends the migration, as its link cannot follow. The place in the destination's batch
is kept from when the request is asked to leave. That a request has ended or been preempted is seen at the end of the
stage, as in Llumnix; until then its transfer goes on and the blocks stay kept. What the destination's prefix cache
holds of the request is copied none the less.
"""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.calibration.transitions import MIGRATION_LAST_STAGE_MAX_BLOCKS
from serving_gym.envs.simulator.fleet.build import model_of
from serving_gym.envs.simulator.fleet.operations import Operation, Phase, Steps
from serving_gym.envs.simulator.fleet.places import Places
from serving_gym.envs.simulator.kernel.migration import ask_to_leave, join, keep
from serving_gym.envs.simulator.kernel.state import DECODE, TRANSIT
from serving_gym.envs.simulator.kernel.world import decoding_progress
from serving_gym.envs.simulator.plane import Process


@dataclass
class Migrating(Operation):
    """A request that moves to the replica at `place`.

    Args:
        request: Row of the workload.
        slot: Where the kernel has it.
        source: Place it comes from.
        preemptions: How often it had been preempted when this began.
        copied: Tokens whose KV is there when the stage under way has ended.
        stage_tokens: Of these, those that this stage copies.
        blocks: KV blocks that the destination keeps.
    """

    phase: Phase = Phase.ASK
    request: int = -1
    slot: int = -1
    source: int = -1
    preemptions: int = 0
    copied: int = 0
    stage_tokens: int = 0
    blocks: int = 0

    def process(self, plane: Steps) -> Process:
        """Carries it out from whatever phase it is in."""
        while not self.done:
            yield plane.timer(self) | plane.next_sharing()
            if plane.simulator.now_ps < self.due_ps:
                continue
            if self.phase == Phase.ASK:
                self._send(plane)
            elif self.phase == Phase.COPY:
                self._end_stage(plane)
            elif self.phase == Phase.LEAVE:
                self._begin_last_stage(plane)

    # -- what is so ----------------------------------------------------------------------------------------------------

    def goes_on(self, simulator: Places) -> bool:
        """Whether the request is still in the source's batch and has not been preempted."""
        return self._stands(simulator, DECODE)

    def away(self, simulator: Places) -> bool:
        """Whether the request has left the source's batch to join the destination's."""
        return self._stands(simulator, TRANSIT)

    def _stands(self, simulator: Places, phase: int) -> bool:
        """Whether the request is in a phase, where it was, and has not been preempted; its slot may be another's."""
        request = simulator.world.requests[self.slot]
        same = request["index"] == self.request and request["preemptions"] == self.preemptions
        return bool(same and request["phase"] == phase and request["engine"] == self.source)

    # -- stages --------------------------------------------------------------------------------------------------------

    def begin_stage(self, plane: Steps) -> bool:
        """Begins to copy all that is there by now; returns False if the destination has no room."""
        present = computed_tokens(plane.simulator, self.slot)
        if not self._keep(plane, present):
            return False
        self.stage_tokens, self.copied = present - self.copied, present
        self._set_up(plane)
        return True

    def _end_stage(self, plane: Steps) -> None:
        """The KV of a stage has come: there is another stage, or a last one, or the request is there."""
        self.phase = Phase.ASK
        plane.end_transfer(self.place, self.request)
        simulator = plane.simulator
        if self.away(simulator):
            self._arrive(plane)
            return
        if not self.goes_on(simulator):
            self.break_off(plane)
            return
        left = computed_tokens(simulator, self.slot) - self.copied
        if left > 1 and left < self.stage_tokens:
            on = self.begin_stage(plane)
        else:
            on = self._fits_last_stage(simulator, left) and self._ask_to_leave(plane)
        if not on:
            self.break_off(plane)

    def _fits_last_stage(self, simulator: Places, tokens: int) -> bool:
        return simulator.fleet.blocks_for(self.place, tokens) <= MIGRATION_LAST_STAGE_MAX_BLOCKS

    def _ask_to_leave(self, plane: Steps) -> bool:
        """Lets the request leave its batch with the iteration in flight; returns False if there is no room for it."""
        simulator = plane.simulator
        in_flight = simulator.world.engines["step_end_ps"][self.source] >= 0
        if not self._keep(plane, computed_tokens(simulator, self.slot) + int(in_flight), places=1):
            return False
        self.phase = Phase.LEAVE
        self.due_ps = (
            int(simulator.world.engines["step_end_ps"][self.source]) if in_flight else simulator.now_ps
        )
        ask_to_leave(simulator.world, simulator.tables, self.slot, self.place)
        return True

    def _begin_last_stage(self, plane: Steps) -> None:
        """The iteration has ended, and the request has left with it or has got its last token."""
        simulator = plane.simulator
        if not self.away(simulator):
            self.break_off(plane)
            return
        present = int(simulator.world.requests["computed"][self.slot])
        self._keep(plane, present)  # a block fewer, if the iteration had no token for it
        self.stage_tokens, self.copied = present - self.copied, present
        self._set_up(plane)

    def _set_up(self, plane: Steps) -> None:
        self.phase, self.due_ps = Phase.ASK, plane.simulator.now_ps + plane.stage_ps

    def _send(self, plane: Steps) -> None:
        """Sends the KV of a stage over the links."""
        self.phase = Phase.COPY
        model = model_of(plane.simulator.fleet.places[self.place].replica)
        size_bytes = round(self.stage_tokens * model.kv_bytes_per_token)
        plane.begin_transfer(self.place, self.source, size_bytes, self.request)

    def _arrive(self, plane: Steps) -> None:
        """Puts the request into the batch at the destination."""
        self.finish()
        plane.migrations_done += 1
        join(plane.simulator.world, plane.simulator.tables, self.slot, self.place)

    def break_off(self, plane: Steps) -> None:
        """Gives up: the request, if it is still there, goes on where it is."""
        simulator = plane.simulator
        simulator.make_room()
        away, leaves = self.away(simulator), self.phase == Phase.LEAVE
        self.finish()
        plane.migrations_aborted += 1
        plane.end_transfer(self.place, self.request)
        world = simulator.world
        keep(world, simulator.tables, self.place, -self.blocks, -int(away or leaves))
        if away:
            join(world, simulator.tables, self.slot, self.source)
        elif leaves and self.goes_on(simulator):
            world.requests["target"][self.slot] = 0
            world.engines["num_leaving"][self.source] -= 1

    # -- room at the destination ---------------------------------------------------------------------------------------

    def _keep(self, plane: Steps, tokens: int, places: int = 0) -> bool:
        """Lets the destination keep blocks for so many tokens, and a place in its batch; returns whether it can."""
        simulator = plane.simulator
        engine = simulator.world.engines[self.place]
        more = simulator.fleet.blocks_for(self.place, tokens) - self.blocks
        most_running = simulator.fleet.places[self.place].replica.max_num_seqs
        full = places > 0 and engine["num_running"] + engine["num_kept"] + places > most_running
        if full or (more > 0 and engine["used_blocks"] + more > engine["capacity_blocks"]):
            return False
        self.blocks += more
        keep(simulator.world, simulator.tables, self.place, more, places)
        return True


def computed_tokens(simulator: Places, slot: int) -> int:
    """Tokens whose KV a decoding request has: all but the last one that came out."""
    return int(simulator.world.requests["prompt"][slot]) + decoding_progress(simulator.world, slot) - 1
