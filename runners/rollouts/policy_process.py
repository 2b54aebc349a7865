"""Policies in a process of their own, so that one that computes, holds the interpreter or hangs stops no live run.

States and observations go through a pipe, pickled; decisions come back. The time limit of a decision is kept here: a
policy without an answer in time gives `NoDecision`, and its late answer is dropped. A process that does not answer for
`hung_after_s`, or ends, is started again; after `MOST_RESTARTS` the policy is given up: every decision is overridden.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import select
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, NamedTuple

from serving_gym.baselines.policy import period_of
from serving_gym.envs.live.control import NoDecision
from serving_gym.envs.live.guardian import die_with_parent
from serving_gym.runners.command_line.cli import use_one_thread
from serving_gym.runners.configuration.policies import load_policy

if TYPE_CHECKING:
    from serving_gym.baselines.policy import Policy

MOST_RESTARTS = 2
HUNG_AFTER_S = 30.0
_LOADED_WITHIN_S = 300.0  # imports, compilation, and a reset
_PATIENCE_S = 0.1  # waiting for an earlier decision before the next one is asked for
_log = logging.getLogger(__name__)


class Question(NamedTuple):
    """What a policy is asked.

    Attributes:
        number: Number of the question.
        policy: Name of the policy.
        config: Its name and constants, if it is to be reset, which loads it at the first time; None: to act.
        given: Arguments of `reset` or `act`.
    """

    number: int
    policy: str
    config: Mapping[str, Any] | None
    given: tuple[Any, ...]


class Reply(NamedTuple):
    """Its answer.

    Attributes:
        number: Number of the question.
        value: The action.
        error: Why there is none.
        took_s: Time that the policy took, seconds.
    """

    number: int
    value: Any
    error: str
    took_s: float


class PolicyProcess:
    """A process that hosts policies. A context manager, which ends the process.

    Args:
        env: Name of the environment that they decide in.
        hung_after_s: Longest time without an answer before it is started again, seconds.

    Attributes:
        given_up: Why no policy is asked any more; empty: they are.
        restarts: How often it has been started again.
        generation: Number of the present process.
        waits_s: Per decision, time beyond that of the policy itself, seconds: the pipe, and waking two processes.
    """

    def __init__(self, env: str, hung_after_s: float = HUNG_AFTER_S) -> None:
        self.env, self.hung_after_s = env, hung_after_s
        self.given_up = ""
        self.restarts = self.generation = 0
        self.waits_s: list[float] = []
        self._number = 0
        self._open: int | None = None  # number of the question without an answer
        self._asked_s = 0.0
        self._patient = False  # whether it may take as long as loading does
        self._start()

    def __enter__(self) -> PolicyProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(OSError):
            self._pipe.close()  # at which it ends, unless it hangs
        self._process.join(1.0)
        self._process.kill()
        self._process.join()

    @property
    def busy(self) -> bool:
        """Whether a question is without an answer."""
        return self._open is not None

    def ask(
        self, policy: str, config: Mapping[str, Any] | None, given: tuple[Any, ...], within_s: float
    ) -> Reply | None:
        """Asks a policy, and waits for its answer; None: there is none in time, or the process has ended.

        Args:
            policy: Its name.
            config: As of `Question`.
            given: Arguments of `reset` or `act`.
            within_s: Time limit, seconds.
        """
        begun_s = time.monotonic()
        self._number += 1
        self._open, self._asked_s, self._patient = self._number, begun_s, config is not None
        try:
            self._pipe.send(Question(self._number, policy, config, given))
        except OSError:
            self._restart(self._how_it_ended())
            return None
        reply = self.settle(within_s)
        if reply is not None and config is None:
            self.waits_s.append(time.monotonic() - begun_s - reply.took_s)
        return reply

    def settle(self, within_s: float) -> Reply | None:
        """Waits for the answer to the last question; starts the process again if it hangs or has ended."""
        deadline_s = time.monotonic() + within_s
        while self._open is not None:
            longest_s = _LOADED_WITHIN_S if self._patient else self.hung_after_s
            hung_s = self._asked_s + longest_s
            if not self._poll.poll(max(1e3 * (min(deadline_s, hung_s) - time.monotonic()), 0.0)):
                if time.monotonic() >= hung_s:
                    self._restart(f"it did not decide for {longest_s:g} s")
                return None
            try:
                reply: Reply = self._pipe.recv()
            except (EOFError, OSError):
                self._restart(self._how_it_ended())
                return None
            if reply.number == self._open:
                self._open = None
                return reply
        return None

    def _how_it_ended(self) -> str:
        self._process.join(1.0)
        return f"its process ended (exit status {self._process.exitcode})"

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        stays = threading.current_thread() is threading.main_thread()
        self._process: BaseProcess = context.Process(
            target=_host, args=(theirs, self.env, stays), name="serving-gym-policy", daemon=True
        )
        with _interrupts_ignored():  # which it inherits: Ctrl-C is for this process
            self._process.start()
        theirs.close()
        self._poll = select.poll()
        self._poll.register(self._pipe.fileno(), select.POLLIN)
        self.generation += 1
        self._open, self._asked_s, self._patient = 0, time.monotonic(), True  # until it is ready

    def _restart(self, reason: str) -> None:
        self._process.kill()
        self.close()
        self._open = None
        if self.restarts >= MOST_RESTARTS:
            self.given_up = f"the policy was given up: {reason}"
            _log.warning("%s; all later decisions are overridden", self.given_up)
            return
        _log.warning("the policy's process is started again: %s", reason)
        self.restarts += 1
        self._start()


class RemotePolicy:
    """A policy in a process of its own.

    Args:
        process: The process.
        config: Name and constants of the policy.
        local: The same policy in this process, for what it says of itself.
        name: Its name in results.
        within_s: Longest time of a decision, seconds; None: until it counts as hanging.
    """

    def __init__(
        self,
        process: PolicyProcess,
        config: Mapping[str, Any],
        local: Policy,
        name: str,
        within_s: float | None,
    ) -> None:
        self.name, self.clairvoyant, self.period_s = local.name, local.clairvoyant, period_of(local)
        self._process, self._config, self._key = process, dict(config), name
        self._within_s = process.hung_after_s if within_s is None else within_s
        self._reset: tuple[Any, ...] | None = None
        self._ready_in = 0  # generation of the process in which it has been reset

    @contextlib.contextmanager
    def unhurried(self) -> Iterator[None]:
        """Inside the block it may take as long as it needs to import and compile itself."""
        before, self._within_s = self._within_s, _LOADED_WITHIN_S
        try:
            yield
        finally:
            self._within_s = before

    def reset(self, spec: Any, seed: int) -> None:
        """Resets the policy, and waits for it.

        Raises:
            ValueError: it fails, or its process ends.
        """
        self._reset = (spec, seed)
        while self._process.busy and not self._process.given_up:
            self._process.settle(_LOADED_WITHIN_S)
        if self._process.given_up:
            return
        reply = self._process.ask(self._key, self._config, self._reset, _LOADED_WITHIN_S)
        if reply is None or reply.error:
            why = "its process ended or hung" if reply is None else reply.error
            raise ValueError(f"policy {self.name} cannot be prepared: {why}")
        self._ready_in = self._process.generation

    def act(self, observation: Any, state: Any) -> Any:
        """The policy's action; `NoDecision` where it fails or has none in time."""
        process = self._process
        process.settle(min(self._within_s, _PATIENCE_S))
        if process.given_up:
            return NoDecision(process.given_up)
        if process.busy:
            return NoDecision(f"{self.name} is still at an earlier decision")
        if self._ready_in != process.generation:
            return NoDecision(self._prepared_again())
        reply = process.ask(self._key, None, (observation, state), self._within_s)
        if reply is None:
            return NoDecision(f"no decision of {self.name} within {1e3 * self._within_s:g} ms")
        if reply.error:
            return NoDecision(f"{self.name} failed: {reply.error}")
        return reply.value

    def _prepared_again(self) -> str:
        """Resets it in a new process, without waiting; returns why it does not decide meanwhile."""
        assert self._reset is not None
        self._ready_in = self._process.generation
        self._process.ask(self._key, self._config, self._reset, 0.0)
        return f"{self.name} is started again"


def _host(pipe: Connection, env: str, parent_stays: bool) -> None:
    """Answers questions until the pipe is closed.

    Args:
        pipe: Questions and answers.
        env: Name of the environment.
        parent_stays: Whether the thread that started this process lives as long as its own process.
    """
    if parent_stays:
        die_with_parent()
    use_one_thread()
    policies: dict[str, Policy] = {}
    with contextlib.suppress(EOFError, OSError):
        pipe.send(Reply(0, None, "", 0.0))
        while True:
            question: Question = pipe.recv()
            pipe.send(_answer(policies, env, question))


def _answer(policies: dict[str, Policy], env: str, question: Question) -> Reply:
    begun_s = time.monotonic()
    value, error = None, ""
    try:
        if question.config is None:
            value = policies[question.policy].act(*question.given)
        else:
            if question.policy not in policies:
                policies[question.policy] = load_policy(question.config, env)
            policies[question.policy].reset(*question.given)
    except Exception as failure:  # noqa: BLE001 -- whatever a policy does, the run goes on
        error = f"{type(failure).__name__}: {failure}"
    return Reply(question.number, value, error, time.monotonic() - begun_s)


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
