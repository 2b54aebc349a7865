"""Records what an installed vllm-router chooses: `python -m tests.baselines.routers.vllm_router`, from the root."""

import sys

from tests.baselines.routers.vllm_router import driver, recording

if not driver.available():
    sys.exit("vllm-router is not installed: pip install 'serving-gym[vllm-router]'")
recording.write()
