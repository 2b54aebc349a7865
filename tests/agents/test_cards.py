"""Cards of checkpoints: one form, shipped or written by a command, and no longer than a screen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from serving_gym.agents.card import SECTIONS, card_text
from serving_gym.agents.checkpoint import CARD, ZOO

SHIPPED = sorted(ZOO.glob(f"*/{CARD}"))
MOST_WORDS = 350  # beside commands
CONFIG = {"agent": {"name": "api"}, "env": {"name": "dp_tp"}, "workload": {"name": "mixture"}}


def has_the_form(card: str) -> bool:
    """Whether a card has a title, a table with the versions, and the sections in order."""
    head, *rest = re.split(r"(?m)^## (.+)$", card)
    return head.startswith("# ") and "| versions | serving-gym " in head and tuple(rest[::2]) == SECTIONS


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.parent.name)
def test_shipped_cards_have_one_form_and_fit_a_screen(path: Path) -> None:
    card = path.read_text()
    assert has_the_form(card)
    training = card.partition("## Training")[2].partition("## Results")[0]
    assert re.search(r"(?m)^    .*(runners\.train|\$T)", training)
    prose = [line for line in card.splitlines() if not line.startswith("    ")]
    assert len(" ".join(prose).split()) <= MOST_WORDS


def test_written_cards_have_it_too() -> None:
    command = "python -m runners.train env=dp_tp agent=api workload=mixture"
    versions = {"serving-gym": "0.2.0", "torch": "2.13.0"}
    card = card_text(
        CONFIG, {"steps": 4000083, "seed": 0}, {"validation return": -168.71234}, versions, command
    )
    assert has_the_form(card)
    assert "| steps | 4,000,083 |\n" in card
    assert "| versions | serving-gym 0.2.0, torch 2.13.0 |\n" in card
    assert f"\n    {command}\n" in card
    assert "| validation return | -168.7 |" in card.partition("## Results")[2]


def test_a_card_without_command_or_results_says_how_to_compare() -> None:
    card = card_text(CONFIG, {"networks": 3}, {}, {"serving-gym": "0.2.0"})
    assert has_the_form(card)
    assert "python -m runners.train" not in card
    assert "python -m runners.compare env=dp_tp 'policies=[POLICY,FOLDER]'" in card
