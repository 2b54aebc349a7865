"""Hooks of the plugin in vLLM; loaded in every process as `vllm.general_plugins`."""

from __future__ import annotations

from functools import wraps
from typing import Any

from .supported import check_version


def register() -> None:
    """Installs the hooks. They act for workers with this package's extension and leave all others alone.

    Raises:
        RuntimeError: vLLM is not the release that the plugin was written against.
    """
    from vllm.version import __version__

    check_version(__version__)
    _hook_engine()
    _hook_workers()


def _hook_engine() -> None:
    """Control calls of the engine core, which `endpoint` makes."""
    from vllm.v1.engine.core import EngineCore

    def switching_set_layout(self: Any, layout: list[int], mode: int) -> dict[str, Any]:
        try:
            return {"accepted": True, "reason": "", "switches": self.scheduler.set_layout(layout, mode)}
        except ValueError as error:
            return {"accepted": False, "reason": str(error), "switches": []}

    def switching_status(self: Any) -> dict[str, Any]:
        return dict(self.scheduler.status())

    EngineCore.switching_set_layout = switching_set_layout
    EngineCore.switching_status = switching_status


def _hook_workers() -> None:
    """Workers with the extension load weights for every degree, and know the process that feeds them orders."""
    from vllm.v1.executor.multiproc_executor import WorkerProc
    from vllm.v1.worker.gpu_worker import Worker

    if getattr(Worker.load_model, "switches", False):
        return
    load, loop = Worker.load_model, WorkerProc.worker_busy_loop

    @wraps(load)
    def load_model(self: Any, **kwargs: Any) -> None:
        if not hasattr(self, "switching_load"):
            load(self, **kwargs)
            return
        self.switching_load(load)

    @wraps(loop)
    def worker_busy_loop(self: Any) -> None:
        if hasattr(self.worker.worker, "switching_load"):
            self.worker.worker.switching_process = self
        loop(self)

    load_model.switches = True  # type: ignore[attr-defined]
    Worker.load_model, WorkerProc.worker_busy_loop = load_model, worker_busy_loop
