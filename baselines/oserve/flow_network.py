"""The units of OServe's flow network (section 4.2).

In the text's network a replica passes at most M_k units, the least common multiple of its n_kj, and a request of type j
takes M_k / n_kj of them. The units differ from replica to replica while a network conserves flow, so that no choice of
units makes a maximum flow equal the constraints C1 to C3. The policy solves these exactly
(`envs.deployment.assignment.assign`).
"""

from __future__ import annotations

from math import lcm

import numpy as np
from numpy.typing import ArrayLike


def normalised_capacity(capacity: ArrayLike) -> tuple[int, tuple[int, ...]]:
    """M_k of one replica and the units M_k / n_kj that a request of each type takes.

    The text's example: 80 and 50 requests make 400, of which a request takes 5 or 8.

    Args:
        capacity: (J,), n_kj in whole requests; a type that the replica cannot serve has 0 and takes 0 units.
    """
    whole = [int(n) for n in np.asarray(capacity)]
    able = [n for n in whole if n > 0]
    M = lcm(*able) if able else 0
    return M, tuple(M // n if n > 0 else 0 for n in whole)
