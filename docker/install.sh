#!/bin/bash
# What an image for GPU machines has in it: docker/Dockerfile.gpu and docker/apptainer.def call this and nothing else, and
# docs/verl.md has the same lines for a machine without containers (tests/dev/test_docker.py compares them).
#
#   bash docker/install.sh system|packages|project      three steps, in this order, each a layer of its own
#
# BACKEND chooses the lock: fsdp (default) or megatron. VENV is the folder of the environment; PYTHON the Python that makes it.
# MAX_JOBS is flash-attn's number of parallel compilers, each of which takes gigabytes of memory; FLASH_ATTN_CUDA_ARCHS the
# GPUs that it is built for (90: H100 and H200; "80;90": A100 too): for all of them it takes hours.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-/opt/venv}
backend=${BACKEND:-fsdp}

case "${1:-}" in
system)
    # A compiler and Python's headers for flash-attn's build, and for Triton, which compiles while it trains; git says which
    # commit trained. NCCL opens libibverbs, and verl libnuma: without them the one takes TCP, and the other pins nothing.
    apt-get update
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        build-essential ca-certificates git ibverbs-providers libibverbs-dev libnuma-dev librdmacm-dev numactl \
        python3.12 python3.12-dev python3.12-venv
    rm -rf /var/lib/apt/lists/*
    ;;
packages)
    "${PYTHON:-python3.12}" -m venv "$venv"
    "$venv/bin/pip" install uv
    . "$venv/bin/activate"
    export UV_NO_CACHE=1 # an image has no use for it
    export FLASH_ATTN_CUDA_ARCHS="${FLASH_ATTN_CUDA_ARCHS:-90}"
    uv pip install --require-hashes -r "requirements-gpu-$backend.lock"
    uv pip install setuptools wheel ninja
    # Forced, since its build would else take a wheel from elsewhere, which no hash is known of.
    FLASH_ATTENTION_FORCE_BUILD=TRUE uv pip install --require-hashes --no-deps --no-build-isolation -r requirements-gpu-flash-attn.lock
    # verl's lock has no hashes for its own wheelhouse.
    [ "$backend" = fsdp ] || uv pip install --no-deps -r requirements-gpu-megatron-wheels.txt
    ;;
project)
    . "$venv/bin/activate"
    uv pip install --no-deps -e .
    # The user who trains does not own these files, and git tells such users nothing.
    git config --system --add safe.directory "$PWD"
    ;;
*)
    echo "usage: bash docker/install.sh system|packages|project" >&2
    exit 2
    ;;
esac
