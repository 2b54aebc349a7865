"""Global routing of interactive requests: which region (section 6.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def order_of_preference(
    origin: str, regions: Sequence[str], proximity: Mapping[str, Sequence[str]]
) -> list[str]:
    """Regions as a request prefers them: its own, those named as near to it, the others in the order given.

    Args:
        origin: Region that it comes from.
        regions: Regions to choose from, the nearest first.
        proximity: By region of origin, regions in order of preference.
    """
    wanted = (origin, *proximity.get(origin, ()), *regions)
    return [region for region in dict.fromkeys(wanted) if region in regions]


def choose_region(utilization: Mapping[str, float], preference: Sequence[str], threshold: float) -> str:
    """The first region in order of preference under the threshold; where none is, the least utilised.

    Args:
        utilization: Effective memory utilisation of each region that can take the request.
        preference: All of them, the most preferred first.
        threshold: Utilisation under which a region is taken by preference.
    """
    hosting = [region for region in preference if region in utilization]
    under = [region for region in hosting if utilization[region] < threshold]
    return under[0] if under else min(hosting, key=utilization.__getitem__)
