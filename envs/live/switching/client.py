"""Client of the plugin's endpoint."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from serving_gym.envs.interface.commands import SwitchMode
from serving_gym.envs.interface.layout import Layout
from serving_gym.envs.live.access import Access
from serving_gym.envs.live.switching.plugin.endpoint import PATH

_WITHIN_S = 30.0  # an answer comes between two iterations


@dataclass(frozen=True)
class SwitchingClient:
    """A server with the plugin.

    Attributes:
        url: Its address.
        access: API key, headers and TLS.
    """

    url: str
    access: Access = field(default_factory=Access)

    def status(self, within_s: float = _WITHIN_S) -> dict[str, Any]:
        """Layout, switches and groups, see `SwitchingScheduler.status`.

        Args:
            within_s: Longest time until an answer, seconds.

        Raises:
            ValueError: no server answers, or the server has no plugin.
        """
        code, answer = self._call(None, within_s)
        if code == 401:
            raise ValueError(
                f"{self.url}{PATH} answers HTTP 401: set backend.access.api_key_env or api_key_file"
            )
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
        code, answer = self._call({"layout": list(layout), "mode": mode.name.lower()}, _WITHIN_S)
        return "" if code == 200 else str(answer.get("reason", f"HTTP {code}"))

    def _call(self, words: dict[str, Any] | None, within_s: float) -> tuple[int, dict[str, Any]]:
        data = None if words is None else json.dumps(words).encode()
        headers = {"Content-Type": "application/json", **self.access.request_headers()}
        request = urllib.request.Request(f"{self.url}{PATH}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=within_s, context=self.access.tls()) as response:
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
