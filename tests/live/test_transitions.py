"""What slots go through, with a stand-in for vLLM, and what the envelope refuses."""

from __future__ import annotations

import textwrap
import time
from dataclasses import replace

import pytest

from serving_gym.envs.live.envelope import Envelope, EnvelopeSettings
from serving_gym.envs.live.launcher import LocalServer
from serving_gym.envs.live.transitions import Deadlines, Slot, SlotState
from tests.live.test_launcher import stand_in, wait_for
from tests.processes import is_running

QUIET = Deadlines(drain_s=0.5, canary_s=5.0)


@pytest.fixture
def make_slot(tmp_path):
    """A slot whose server is stopped at the end."""
    slots = []

    def make(in_flight=lambda: 0, before="", deadlines=QUIET, canary=lambda url, within_s: None, **settings):
        server = LocalServer(replace(stand_in(tmp_path, before), **settings), tmp_path / f"slot{len(slots)}")
        slots.append(Slot(server, in_flight, deadlines, canary))
        return slots[-1]

    yield make
    for slot in slots:
        slot.close()


def settled(slot: Slot, state: SlotState) -> None:
    wait_for(lambda: slot.state == state)


def visited(slot: Slot) -> list[str]:
    return [str(step.state) for step in slot.steps]


def test_a_start_proves_itself_and_a_stop_waits_for_what_runs(make_slot):
    running = [2]
    asked = []
    slot = make_slot(
        lambda: running[0], canary=lambda url, within_s: asked.append(url), deadlines=Deadlines()
    )
    assert slot.start() == ""
    settled(slot, SlotState.READY)
    assert asked == [slot.server.url]
    pid = slot.server.pid
    assert pid is not None
    assert slot.stop() == ""
    settled(slot, SlotState.DRAINING)
    assert "the slot is draining, which must be stopped or failed" in slot.start()
    assert is_running(pid)
    time.sleep(0.2)
    assert slot.state == SlotState.DRAINING
    running[0] = 0
    settled(slot, SlotState.STOPPED)
    assert not is_running(pid)
    assert visited(slot) == ["stopped", "starting", "canary", "ready", "cordoned", "draining"]
    assert slot.took_s(SlotState.DRAINING)[0] >= 0.2


def test_a_drain_has_an_end_and_says_so(make_slot):
    slot = make_slot(lambda: 3)
    slot.start()
    settled(slot, SlotState.READY)
    slot.stop()
    settled(slot, SlotState.STOPPED)
    notes = [step.note for step in slot.steps if step.note]
    assert notes == ["3 requests did not end within 0.5 s"]


def test_without_a_drain_what_runs_is_not_waited_for(make_slot):
    slot = make_slot(lambda: 3, deadlines=Deadlines())
    slot.start()
    settled(slot, SlotState.READY)
    slot.stop(drain=False)
    settled(slot, SlotState.STOPPED)
    assert "draining" not in visited(slot)


def test_a_relaunch_keeps_its_address(make_slot):
    slot = make_slot()
    slot.start()
    settled(slot, SlotState.READY)
    url, settings = slot.server.url, replace(slot.server.settings, tp_size=2)
    assert slot.relaunch(settings) == ""
    wait_for(lambda: visited(slot).count("canary") == 2 and slot.state == SlotState.READY)
    assert slot.server.url == url
    assert slot.server.settings.tp_size == 2


def test_a_server_that_does_not_come_up_or_fails_its_canary(make_slot):
    slot = make_slot(before="sys.exit('no memory')")
    slot.start()
    settled(slot, SlotState.FAILED)
    assert "no memory" in slot.steps[-1].note

    def silent(url, within_s):
        raise TimeoutError(f"nothing within {within_s:g} s")

    broken = make_slot(canary=silent)
    broken.start()
    settled(broken, SlotState.FAILED)
    assert "nothing within 5 s" in broken.steps[-1].note
    assert broken.server.pid is None
    broken.canary = lambda url, within_s: None
    assert broken.start() == ""  # it may be tried again
    settled(broken, SlotState.READY)


def test_sleep_is_for_servers_that_can(make_slot):
    slot = make_slot()
    assert "not started with backend.sleep_mode" in slot.sleep()
    assert "must be asleep" in slot.wake()


def test_sleep_and_wake_by_vllms_own_words(tmp_path, make_slot):
    """The stand-in answers POST as well, and notes what it was asked."""
    script = """
    import http.server
    def do_POST(self):
        with open("posts", "a") as file:
            file.write(self.path + "\\n")
        self.send_response(200); self.end_headers()
    http.server.BaseHTTPRequestHandler.do_POST = do_POST
    """
    slot = make_slot(before=textwrap.dedent(script).strip(), device="cuda", sleep_mode=True)
    slot.start()
    settled(slot, SlotState.READY)
    assert "level must be 1 or 2" in slot.sleep(level=3)
    assert slot.sleep(level=2) == ""
    settled(slot, SlotState.ASLEEP)
    assert slot.wake() == ""
    settled(slot, SlotState.READY)
    assert (slot.server.folder / "posts").read_text().split() == ["/sleep?level=2", "/wake_up"]
    assert visited(slot)[-4:] == ["draining", "asleep", "waking", "canary"]


def test_dwell_and_budget():
    envelope = Envelope(EnvelopeSettings(min_dwell_s=10.0, most_per_hour=3), 2)
    assert envelope.refuses(0, 0.0) == ""
    envelope.note(0, 0.0)
    assert "dwell is 10 s" in envelope.refuses(0, 9.0)
    assert envelope.refuses(1, 9.0) == ""
    assert envelope.refuses(0, 10.0) == ""
    envelope.note(1, 20.0)
    envelope.note(0, 30.0)
    assert "the budget is 3" in envelope.refuses(1, 40.0)
    assert envelope.refuses(1, 3600.0) == ""  # the first was an hour ago


def test_who_stays_must_bear_what_the_other_had():
    """Three at 0.5 are two at 0.75; three at 0.6 would be two at 0.9."""
    envelope = Envelope(EnvelopeSettings(), 3)
    assert envelope.refuses_removal(3, 0.5) == ""
    assert "from 0.60 to 0.90" in envelope.refuses_removal(3, 0.6)
    assert "at least 1 must stay" in envelope.refuses_removal(1, 0.0)


def test_how_many_may_go_and_come():
    """Four at 0.3 are three at 0.4, two at 0.6 and one at 1.2, which is too much for it."""
    envelope = Envelope(EnvelopeSettings(min_dwell_s=10.0, most_per_hour=3), 8)
    assert envelope.room(0.0, range(4), range(4, 8), 0.3) == (2, 3)
    assert envelope.room(0.0, range(4), (), 0.0) == (3, 0)  # one must stay
    envelope.note(0, 0.0)
    envelope.note(4, 0.0)
    assert envelope.room(5.0, range(4), range(4, 8), 0.3) == (1, 1)  # of the budget one is left
    assert envelope.room(5.0, (0,), (4,), 0.0) == (0, 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"min_dwell_s": -1}, "min_dwell_s"),
        ({"most_usage_after": 0}, "most_usage_after"),
        ({"min_ready": -1}, "min_ready"),
    ],
)
def test_limits_that_are_none(words, message):
    with pytest.raises(ValueError, match=message):
        EnvelopeSettings(**words)
    with pytest.raises(ValueError, match="drain_s"):
        Deadlines(drain_s=0)
