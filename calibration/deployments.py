"""From a deployment to its latency: what was fitted to it, else what is known of its relations.

In this order: coefficients fitted to the deployment itself; kernels and the overheads fitted to the same model and GPU
at other widths; kernels and the overheads of the model, or of all models, on the engine; the same with kernels
interpolated between measured widths; the profile from other tables of the GPU, with the engine's front end; a roofline.
`describe.describe` says in one sentence which of them a profile is.
"""

import warnings
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from serving_gym.calibration.coefficients import LatencyCoefficients, roofline_coefficients
from serving_gym.calibration.engines import Engine, Frontend, get_engine
from serving_gym.calibration.hardware import get_gpu
from serving_gym.calibration.kernels import find_kernels
from serving_gym.calibration.memory import check_fits
from serving_gym.calibration.models import get_model
from serving_gym.calibration.profile import Profile, load_profile, parse_profile, profile_file_name
from serving_gym.calibration.widths import kernels_near, kernels_of_ranks

FITTED, OTHER_WIDTHS, ENGINE, ROOFLINE = "fitted", "fitted at other widths", "kernels and engine", "roofline"
TABLES = "tables and engine"
NEAR_WIDTHS = "kernels at neighbouring widths and engine"
CPU = (
    "cpu"  # the core that servers are launched on; no kernel table covers it, and no version was fitted there
)


@dataclass(frozen=True)
class Deployment:
    """A model on some GPUs under one engine: what is held out together.

    Args:
        model: Name of the model, precision included.
        gpu: Name of the GPU.
        tp: GPUs that share every layer.
        engine: Name of the engine (`calibration.engines`).
        expert_parallel: Whether experts are spread over the GPUs rather than split.
        pp: Pipeline stages, each of `tp` GPUs; the latency of a profile is that of one stage with all layers.
        attention_ranks: Ranks of data-parallel attention among the `tp` GPUs, which share the experts.
    """

    model: str
    gpu: str
    tp: int
    engine: str
    expert_parallel: bool = False
    pp: int = 1
    attention_ranks: int = 1

    @property
    def name(self) -> str:
        """For tables."""
        split = f"ep{self.tp}" if self.expert_parallel else f"tp{self.tp}"
        stages = f"pp{self.pp}" if self.pp > 1 else ""
        ranks = f"dp{self.attention_ranks}" if self.attention_ranks > 1 else ""
        return f"{self.model}|{self.gpu}|{split}{ranks}{stages}|{self.engine}"


@cache
def load_engine_profile(model: str, gpu: str, engine: str) -> Profile | None:
    """The committed profile of a model on a GPU under an engine, if there is one."""
    file = resources.files("serving_gym.calibration") / "profiles" / profile_file_name(model, gpu, engine)
    return parse_profile(file.read_text(encoding="utf-8")) if file.is_file() else None


def kernels_or_roofline(deployment: Deployment) -> tuple[LatencyCoefficients, str]:
    """Coefficients without an engine, and whether they come from kernel tables."""
    d = deployment
    kernels = find_kernels(d.model, d.gpu, d.tp, d.expert_parallel)
    return assumed_kernels(d) if kernels is None else (kernels, ENGINE)


def assumed_kernels(deployment: Deployment) -> tuple[LatencyCoefficients, str]:
    """Coefficients without an engine of what no kernel table covers; warns."""
    d = deployment
    warnings.warn(
        f"no kernel of {d.model} on {d.tp} x {d.gpu} was measured: latency is a roofline estimate "
        "(source='roofline')",
        stacklevel=3,
    )
    roofline = roofline_coefficients(get_gpu(d.gpu))
    return replace(roofline, fixed_s=0.0, sequence_s=0.0), ROOFLINE


def kernels_around(deployment: Deployment) -> tuple[LatencyCoefficients, str]:
    """Coefficients without an engine: the deployment's kernels, those of neighbouring widths, or a roofline."""
    d = deployment
    if d.attention_ranks > 1:
        shared = kernels_of_ranks(d.model, d.gpu, d.tp, d.attention_ranks, d.expert_parallel)
        return (shared, ENGINE) if shared else assumed_kernels(d)
    measured = find_kernels(d.model, d.gpu, d.tp, d.expert_parallel)
    near = None if measured or d.expert_parallel else kernels_near(d.model, d.gpu, d.tp)
    return (near, NEAR_WIDTHS) if near else kernels_or_roofline(d)


def _from_tables(deployment: Deployment, overheads: Engine) -> Profile | None:
    """The profile that was fitted to tables of a GPU without kernel tables, scheduled as an engine does, if any."""
    d = deployment
    tables = load_engine_profile(d.model, d.gpu, "")
    if tables is None or d.tp not in tables.widths or find_kernels(d.model, d.gpu, d.tp):
        return None
    if kernels_near(d.model, d.gpu, d.tp):
        return None
    return replace(tables, source=TABLES, engine=d.engine, async_scheduling=overheads.async_scheduling)


def assembled(deployment: Deployment, overheads: Engine, source: str) -> tuple[Profile, Frontend]:
    """Kernels with an engine around them."""
    kernels, found = kernels_around(deployment)
    coefficients = overheads.applied(kernels, deployment.tp // deployment.attention_ranks)
    profile = Profile(
        get_model(deployment.model),
        get_gpu(deployment.gpu),
        source if found == ENGINE else found,
        {deployment.tp: coefficients},
        engine=deployment.engine,
        async_scheduling=overheads.async_scheduling,
        attention_ranks=deployment.attention_ranks,
    )
    return profile, overheads.frontend


def profile_at(model: str, gpu: str, engine: str, widths: tuple[int, ...]) -> Profile:
    """One profile of a model on a GPU under an engine, with coefficients and front ends at each of some widths.

    Raises:
        ValueError: As `find_profile`.
    """
    found = {width: find_profile(Deployment(model, gpu, width, engine)) for width in widths}
    first = found[widths[0]][0]
    return replace(
        first,
        coefficients={width: profile.coefficients_at(width) for width, (profile, _) in found.items()},
        frontends={width: front_end for width, (_, front_end) in found.items()},
    )


def find_profile(deployment: Deployment) -> tuple[Profile, Frontend]:
    """Profile and front end of a deployment, from the most specific thing known of it; `Profile.source` says which.

    Without an engine it is the profile from kernel tables alone. On a CPU the profile of the model that was measured
    there is used whatever engine is named: no kernel table covers CPUs, so that no version could be told from another.

    Raises:
        ValueError: Model, GPU or engine is unknown, the model does not fit its GPUs, or the profile of a CPU has other
            widths.
    """
    d = deployment
    check_fits(get_model(d.model), get_gpu(d.gpu), d.tp * d.pp)
    if not d.engine:
        from_tables = load_profile(d.model, d.gpu)
        from_tables.coefficients_at(d.tp)
        return from_tables, from_tables.frontends.get(d.tp, Frontend())
    overheads = get_engine(d.engine, d.model)
    profile = load_engine_profile(d.model, d.gpu, "" if d.gpu == CPU else d.engine)
    if profile is not None and d.gpu == CPU:
        profile.coefficients_at(d.tp)
    spread = d.expert_parallel or d.attention_ranks > 1
    if profile is None and not spread:
        tables = _from_tables(d, overheads)
        if tables is not None:
            return tables, overheads.frontend
    if profile is None or spread:
        return assembled(d, overheads, ENGINE)
    if d.tp in profile.widths:
        return profile, profile.frontends.get(d.tp, Frontend())
    return assembled(d, profile.overheads or overheads, OTHER_WIDTHS)
