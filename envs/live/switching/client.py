"""Client of the plugin's endpoint."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from serving_gym.envs.interface.commands import SwitchMode
from serving_gym.envs.interface.layout import Layout
from serving_gym.envs.live.switching.plugin.endpoint import PATH

_WITHIN_S = 30.0  # an answer comes between two iterations


@dataclass(frozen=True)
class SwitchingClient:
    """A server with the plugin.

    Attributes:
        url: Its address.
    """

    url: str

    def status(self) -> dict[str, Any]:
        """Layout, switches and groups, see `SwitchingScheduler.status`.

        Raises:
            ValueError: no server answers, or the server has no plugin.
        """
        code, answer = self._call(None)
        if code != 200:
            raise ValueError(
                f"{self.url}{PATH} answers HTTP {code}; is it a server with the plugin (envs.live.switching.install)?"
            )
        return answer

    def set_layout(self, layout: Layout, mode: SwitchMode) -> str:
        """Begins to switch; returns why it was refused, or nothing.

        Raises:
            ValueError: no server answers.
        """
        code, answer = self._call({"layout": list(layout), "mode": mode.name.lower()})
        return "" if code == 200 else str(answer.get("reason", f"HTTP {code}"))

    def _call(self, words: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
        data = None if words is None else json.dumps(words).encode()
        request = urllib.request.Request(f"{self.url}{PATH}", data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=_WITHIN_S) as response:
                return int(response.status), _object(response.read())
        except urllib.error.HTTPError as error:
            return error.code, _object(error.read())
        except (urllib.error.URLError, OSError) as error:
            raise ValueError(f"no server answers at {self.url}{PATH} ({error})") from None


def _object(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
