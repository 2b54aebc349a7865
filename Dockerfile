# docker build -t serving-gym .
# docker run --rm -v "$PWD/runs:/workspace/runs" serving-gym train env=dp_tp
FROM python:3.11-slim

WORKDIR /src
COPY . .

# The networks are small. PyTorch without CUDA saves gigabytes: --build-arg TORCH="--index-url URL_OF_CPU_BUILDS".
ARG TORCH=""
RUN pip install --no-cache-dir $TORCH torch==2.13.0 && pip install --no-cache-dir .

# Kernels compile on first use; a volume here keeps them: -v serving_gym_cache:/cache
ENV NUMBA_CACHE_DIR=/cache

WORKDIR /workspace
ENTRYPOINT ["serving-gym"]
CMD ["--help"]
