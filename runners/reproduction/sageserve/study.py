"""The setting of section 7.2.6: one endpoint, two interactive tiers, four schedulers.

From the paper: the models, eight H100 an instance and 20 instances of a model in a region (sections 4 and 7.1), join
the shortest queue (section 6.1), the performance model of Splitwise's simulator (section 7.1; profiles fitted to its
tables, and where it has none of a model, kernels with its overheads), IW-F's SLA of 1 s (section 2.2).

Ours, because the paper does not say or does not publish it:

* Requests: the workload `sageserve_tiers` around the peak of a Tuesday, the day of Figure 8; only its interactive
  tiers, as the queue manager keeps the other out of a loaded endpoint.
* A fixed number of instances. The paper's are scaled, which keeps an endpoint near its capacity; here the load does.
* Load: the one rate, found by bisection, at which FCFS violates the SLA of as many IW-F requests as in the paper. So
  that figure is no result, and all others are.
* IW-N's SLA and DPA's thresholds: see `choices.py`. The shares with an SLA of a minute are shown as well.
* Batches of at most 512 requests and 2048 tokens, as in the configuration of the simulator that the paper extends
  (Mutinifni/splitwise-sim). Prompts are chunked, as in vLLM; there they are not. No network latency: one region.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.deployments import Deployment, find_profile
from serving_gym.calibration.profile import Profile
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.metrics import FloatArray, RequestRecords
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.simulator.simulator import Simulator
from serving_gym.envs.workload.schema import Workload
from serving_gym.envs.workload.seeding import stream
from serving_gym.envs.workload.tiers import IW_F, IW_N, TIERS, TieredTraffic
from serving_gym.runners.reproduction.claims import claim_of
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.measures import percentile, request_capacity_rps
from serving_gym.runners.reproduction.parts import TRACE_MODEL_LEN, PaperStudy, num_seeds
from serving_gym.runners.reproduction.sageserve.choices import SageServeChoices

PAPER = "sageserve"
make_claim = partial(claim_of, PAPER)
FCFS, EDF, PF, DPA = "FCFS", "EDF", "PF", "DPA"
ORDERS = {FCFS: "fcfs", EDF: "edf", PF: "priority", DPA: "dpa"}
IW_F_SLA_S, IW_N_STATED_S = 1.0, 60.0
FCFS_VIOLATIONS = 0.45  # of IW-F, section 7.2.6

_DURATION_S = 1800.0
_PEAK_OF_TUESDAY_H = 24.0 + TieredTraffic.peak_h
_INSTANCES, _GPUS = 20, 8
_SEARCH_STEPS = 10  # of the load, each halving the range on a logarithmic scale
_SEARCH_RANGE = (0.5, 2.0)  # times what the endpoint serves when all requests are there at once
_CAPACITY_REQUESTS = 20_000
_AT_ONCE = 1e6
_NIW_SLO = SLO(86400.0, 60.0)
_TPOT_SLO_S = 60.0  # no promise


@dataclass(frozen=True)
class Model:
    """A model of section 7.1: its name in the paper and in `calibration.models`."""

    name: str
    key: str

    @property
    def profile(self) -> Profile:
        """Latency of an instance."""
        return find_profile(Deployment(self.key, "H100", _GPUS, "splitwise"))[0]


LLAMA_2 = Model("Llama-2-70B", "llama-2-70b")
MODELS = (
    LLAMA_2,
    Model("Bloom-176B", "bloom-176b"),
    Model("Llama-3.1-8B", "llama-3.1-8b"),
    Model("Llama-3.2-3B", "llama-3.2-3b"),
)


@dataclass(frozen=True, eq=False)
class Outcome:
    """First tokens of all seeds.

    Attributes:
        ttft_s: (requests,), infinite where there was none.
        class_id: (requests,), tier.
    """

    ttft_s: FloatArray
    class_id: NDArray[np.int32]

    def of(self, tier: str) -> FloatArray:
        """TTFT of a tier's requests, seconds."""
        return self.ttft_s[self.class_id == TIERS.index(tier)]

    def violations(self, tier: str, sla_s: float) -> float:
        """Share of a tier's requests whose first token came later than promised."""
        return float((self.of(tier) > sla_s).mean())

    def upper_quartile_s(self, tier: str) -> float:
        """Q3 of a tier's TTFT."""
        return percentile(self.of(tier), 75)


@dataclass
class Study(PaperStudy):
    """Serves models under schedulers and remembers the load of each."""

    choices: SageServeChoices = field(default_factory=SageServeChoices)
    _rates_rps: dict[str, float] = field(default_factory=dict)

    def run(self, model: Model, scheduler: str, iw_n_sla_s: float | None = None) -> Outcome:
        """One scheduler at the model's load, all seeds pooled; IW-N's SLA where it is not the chosen one."""
        return self._outcome(model, scheduler, self.rate_rps(model), iw_n_sla_s)

    def rate_rps(self, model: Model) -> float:
        """The one rule for the load, requests per second: FCFS violates IW-F's SLA as often as in the paper."""
        if model.name not in self._rates_rps:
            capacity_rps = self._capacity_rps(model)
            low, high = (factor * capacity_rps for factor in _SEARCH_RANGE)
            for _ in range(_SEARCH_STEPS):
                middle = float(np.sqrt(low * high))
                violations = self._outcome(model, FCFS, middle).violations(IW_F, IW_F_SLA_S)
                low, high = (low, middle) if violations > FCFS_VIOLATIONS else (middle, high)
            self._rates_rps[model.name] = float(np.sqrt(low * high))
        return self._rates_rps[model.name]

    def _outcome(
        self, model: Model, scheduler: str, rate_rps: float, iw_n_sla_s: float | None = None
    ) -> Outcome:
        runs = [
            self._serve(model, scheduler, self._workload(rate_rps, seed), iw_n_sla_s) for seed in self.seeds
        ]
        return Outcome(
            np.concatenate([records.ttft_s for records in runs]),
            np.concatenate([records.class_id for records in runs]),
        )

    def _capacity_rps(self, model: Model) -> float:
        workload = self._traffic(1.0).sample(_CAPACITY_REQUESTS, self._stream(self.seeds[0]))
        return request_capacity_rps(self._serve(model, FCFS, workload.with_rate_scale(_AT_ONCE)))

    def _traffic(self, rate_rps: float) -> TieredTraffic:
        """Interactive requests around the peak, so many per second."""
        start_h = _PEAK_OF_TUESDAY_H - _DURATION_S / 3600 / 2
        shares = {tier: TieredTraffic().shares[tier] for tier in (IW_F, IW_N)}
        peak = float(TieredTraffic().shape(np.array([_PEAK_OF_TUESDAY_H]))[0])
        return TieredTraffic(mean_rps=rate_rps / peak, shares=shares, start_h=start_h)

    def _workload(self, rate_rps: float, seed: int) -> Workload:
        """An episode: as many requests as were asked for, else half an hour; quick takes a quarter."""
        wanted = self.config.requests or round(rate_rps * _DURATION_S)
        requests = max(1, wanted // 4) if self.config.quick else wanted
        return self._traffic(rate_rps).sample(requests, self._stream(seed))

    def _stream(self, seed: int) -> np.random.Generator:
        return stream(seed, TieredTraffic.name, self.config.split)

    def _serve(
        self, model: Model, scheduler: str, workload: Workload, iw_n_sla_s: float | None = None
    ) -> RequestRecords:
        self.bar.set_postfix_str(f"{model.name}, {scheduler}", refresh=False)
        cluster = ClusterSpec(
            model=model.key,
            gpu="H100",
            num_gpus=_INSTANCES * _GPUS,
            base_width=_GPUS,
            max_group=1,
            router="jsq",
            order=ORDERS[scheduler],
            max_num_seqs=512,
            max_num_batched_tokens=2048,
            max_model_len=TRACE_MODEL_LEN,
            memory_utilization=0.9,
            dpa_expired_s=self.choices.tau_n_s,
            dpa_urgent_s=self.choices.tau_p_s,
        )
        sla_s = self.choices.iw_n_sla_s if iw_n_sla_s is None else iw_n_sla_s
        slos = (SLO(IW_F_SLA_S, _TPOT_SLO_S), SLO(sla_s, _TPOT_SLO_S), _NIW_SLO)
        simulator = Simulator(cluster, slos, profile=model.profile)
        simulator.reset(workload)
        simulator.run_to_completion()
        self.bar.update(1)
        return simulator.results()


def episodes_for_load(config: ReproduceConfig) -> int:
    """Episodes that finding a model's load takes."""
    return 1 + _SEARCH_STEPS * num_seeds(config)
