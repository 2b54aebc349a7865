"""Policies that do what a server must survive; they are named as tests.live.served_policies:CLASS."""

from __future__ import annotations

import os
import time


class Fixed:
    """Does what it is told to."""

    name = "fixed"
    clairvoyant = False

    def __init__(self, action=None):
        self.action = action

    def reset(self, spec, seed):
        pass

    def act(self, observation, state):
        if isinstance(self.action, Exception):
            raise self.action
        return self.action


class Troubled(Fixed):
    """By the index of the request: 1 is late, 2 fails, 3 hangs for good, 4 ends the process; others are held."""

    name = "troubled"

    def act(self, observation, state):
        match state.request.index:
            case 101:
                time.sleep(0.5)
            case 102:
                raise ValueError("out of its depth")
            case 103:
                while True:
                    pass
            case 104:
                os._exit(3)
        return


class Failing(Fixed):
    """Fails."""

    name = "failing"

    def act(self, observation, state):
        raise ValueError("out of its depth")
