# The cloud's roles, one target each, and the one that prepares models. Build from the repository's root:
#   docker build -f deploy/cloud.Dockerfile --target gateway -t weir-gateway .     (likewise admin: no torch)
#   docker build -f deploy/cloud.Dockerfile --target engine  -t weir-engine  .     (torch)
#   docker build -f deploy/cloud.Dockerfile --target prepare -t weir-prepare .     (pull and quantize)
#
# TORCH_INDEX: address of a package index that holds the build of torch you want (CPU, or a CUDA version).
# Empty: the index pip is set up for, which by default gives the CUDA build on x86-64 Linux.
ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim AS wheel
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON_VERSION}-slim AS light
COPY requirements/gateway.lock /locks/
COPY --from=wheel /wheels /wheels
RUN python -m venv /opt/weir \
 && /opt/weir/bin/pip install --no-cache-dir --no-deps --require-hashes -r /locks/gateway.lock \
 && /opt/weir/bin/pip install --no-cache-dir --no-deps /wheels/*.whl

FROM python:${PYTHON_VERSION}-slim AS heavy
ARG TORCH_INDEX=""
COPY requirements/cloud.lock /locks/
COPY --from=wheel /wheels /wheels
RUN python -m venv /opt/weir \
 && /opt/weir/bin/pip install --no-cache-dir --no-deps --require-hashes -r /locks/cloud.lock \
 && if [ -n "$TORCH_INDEX" ]; then export PIP_INDEX_URL="$TORCH_INDEX"; fi \
 && /opt/weir/bin/pip install --no-cache-dir torch==2.13.0 \
 && /opt/weir/bin/pip install --no-cache-dir --no-deps /wheels/*.whl

FROM heavy AS heaviest
COPY requirements/quantize.lock /locks/
RUN /opt/weir/bin/pip install --no-cache-dir --no-deps --require-hashes -r /locks/quantize.lock

FROM python:${PYTHON_VERSION}-slim AS base
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends libgomp1 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin weir \
 && install -d -o weir -g weir /releases /cache /state
ENV PATH=/opt/weir/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    OMP_NUM_THREADS=1 \
    RAYON_NUM_THREADS=1 \
    HF_HUB_DISABLE_TELEMETRY=1 \
    WEIR_CACHE=/cache
USER 10001
ENTRYPOINT ["weir"]

FROM base AS gateway
COPY --from=light /opt/weir /opt/weir
ENV WEIR_GATEWAY__ADDRESS=0.0.0.0:50061 \
    WEIR_GATEWAY__HTTP_ADDRESS=0.0.0.0:8081
EXPOSE 50061 8081
# Alive, not ready: a gateway without engines must stay up to say so.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8081/healthz', timeout=3)"]
CMD ["cloud", "serve"]

FROM base AS admin
COPY --from=light /opt/weir /opt/weir
ENV WEIR_ADMIN__ADDRESS=0.0.0.0:8090 \
    WEIR_ADMIN__STORE_URL=sqlite:////state/weir.db \
    WEIR_ADMIN__RELEASES_DIR=/releases
VOLUME ["/state", "/releases"]
EXPOSE 8090
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8090/healthz', timeout=3)"]
CMD ["admin", "serve"]

FROM base AS engine
COPY --from=heavy /opt/weir /opt/weir
ENV WEIR_ENGINE__ADDRESS=0.0.0.0:50071 \
    HF_HUB_OFFLINE=1
VOLUME /cache
EXPOSE 50071
# Loading a large model takes minutes; the probe answers only when every rank is up.
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s --retries=3 \
  CMD ["python", "-m", "wire.health_probe", "127.0.0.1:50071"]
CMD ["engine", "serve"]

FROM base AS prepare
COPY --from=heaviest /opt/weir /opt/weir
VOLUME ["/cache", "/releases"]
HEALTHCHECK NONE
CMD ["--help"]
