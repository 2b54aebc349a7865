"""The routing action: a place for the request on the desk, or to hold it; with admission, to refuse or to defer it."""

from __future__ import annotations

from serving_gym.envs.routing.state import Defer, Dispatch, Reject, Verdict

# Actions behind the places: the first is num_rows.
HOLD, REJECT, DEFER = range(3)


def decode_action(action: int | Verdict | None, num_rows: int) -> Verdict:
    """An action spelled out; None holds the request.

    Args:
        action: A place, `num_rows` + HOLD, REJECT or DEFER, a command or None.
        num_rows: Rows for places in the observation.
    """
    if isinstance(action, Verdict):
        return action
    if action is None or action == num_rows + HOLD:
        return Dispatch(None)
    if action == num_rows + REJECT:
        return Reject()
    return Defer() if action == num_rows + DEFER else Dispatch(int(action))


def encode_action(verdict: Verdict, num_rows: int) -> int:
    """The action of the action space that a command comes to, its priority and its fleet commands aside."""
    if isinstance(verdict, Reject):
        return num_rows + REJECT
    if isinstance(verdict, Defer):
        return num_rows + DEFER
    return num_rows + HOLD if verdict.place is None else int(verdict.place)


def check_admission(verdict: object, admission: bool) -> None:
    """Refuses a command that needs admission to be a decision where it is none.

    Raises:
        ValueError: it is.
    """
    if isinstance(verdict, Reject | Defer) and not admission:
        raise ValueError(
            f"{type(verdict).__name__} needs env.admission=true; here a router may only hold a request"
        )


def refusal(action: int, num_rows: int) -> str:
    """Why an action was refused and the request is held."""
    if action == num_rows + DEFER:
        return f"action {action} defers a request that has been deferred already"
    return f"action {action} is no place that can take the request"
