"""Flying Serving: on-the-fly parallelism switching (Gao et al., 2026, arXiv 2602.22593).

The policy decides when to bind base engines into tensor-parallel groups and when to release them (sections 2.3, 3 and
5.2):

    config.py, load_adaptation.py, priority_binding.py, long_context.py, policy.py

What makes a switch cheap belongs to the cluster. The vLLM plugin `envs.live.switching.plugin` implements the weights
manager, KV cache adaptor, communicator pool and algorithm 1 (sections 4.1 to 4.3 and 5.1). The simulator accounts for
them: `calibration.memory` counts whole weights and the tokens of a block, `calibration.transitions` gives the times of
a switch and of building communicators, and `envs.simulator.control_plane` runs the switches.

Where the text is silent the authors' public release is named as the source if it has an answer
(github.com/Picomp-lab/Flying-Serving, its documentation only), else `source: ours`.
"""
