# Two images from one file:
#   docker build --target cpu  -t adjudge:cpu .
#   docker build --target cuda -t adjudge:cuda .     (run with --gpus all)
# TORCH_INDEX: a package index that has CPU builds of torch. Without it the cpu image holds the
# default build, which works as well and is several times larger.
ARG PYTHON_VERSION=3.12

FROM python:${PYTHON_VERSION}-slim AS base
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN useradd --create-home --uid 10001 adjudge
WORKDIR /opt/adjudge
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY adjudge ./adjudge
ENV ADJUDGE_HOST=0.0.0.0 ADJUDGE_PORT=8000 ADJUDGE_LOG_FORMAT=json
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=15m --retries=3 CMD \
    ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health/ready')"]
ENTRYPOINT ["adjudge"]
CMD ["serve"]

FROM base AS cpu
ARG TORCH_INDEX=""
RUN pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' constraints.txt)" \
    && pip install -c constraints.txt ".[qwen]"
USER adjudge

# torch brings the CUDA libraries; Triton builds its launchers with a C compiler.
FROM base AS cuda
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN pip install "$(grep '^torch==' constraints.txt)" \
    && grep -v '^triton==' constraints.txt >/tmp/pins.txt \
    && pip install -c /tmp/pins.txt ".[qwen]"
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER adjudge
CMD ["serve", "--device", "cuda"]
