# docker build -t serving-gym .
# docker run --rm -v "$PWD/runs:/workspace/runs" serving-gym train env=dp_tp
FROM python:3.11-slim

WORKDIR /src
COPY . .

# PyTorch without CUDA: the networks are small. Another index gives another build: --build-arg TORCH_INDEX=URL.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" torch==2.13.0 \
    && pip install --no-cache-dir .

# Kernels compile on first use; a volume here keeps them: -v serving_gym_cache:/cache
ENV NUMBA_CACHE_DIR=/cache

WORKDIR /workspace
ENTRYPOINT ["serving-gym"]
CMD ["--help"]
