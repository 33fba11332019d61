# The edge node: ONNX Runtime, no torch. Build from the repository's root:
#   docker build -f deploy/edge.Dockerfile -t weir-edge .
ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
 && python -m venv /opt/weir \
 && /opt/weir/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements/edge.lock \
 && /opt/weir/bin/pip install --no-cache-dir --no-deps /wheels/*.whl

FROM python:${PYTHON_VERSION}-slim
# onnxruntime is linked against GNU OpenMP's runtime on some platforms; the slim image lacks it.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends libgomp1 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin weir \
 && install -d -o weir -g weir /releases
COPY --from=build /opt/weir /opt/weir
# One thread per library unless the settings say otherwise: two pools on one core slow each other down.
ENV PATH=/opt/weir/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    OMP_NUM_THREADS=1 \
    RAYON_NUM_THREADS=1 \
    WEIR_EDGE__RELEASES_DIR=/releases \
    WEIR_EDGE__HTTP_ADDRESS=0.0.0.0:8080 \
    WEIR_EDGE__GRPC_ADDRESS=0.0.0.0:50051
USER 10001
VOLUME /releases
EXPOSE 8080 50051
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python", "-m", "wire.health_probe", "127.0.0.1:50051"]
ENTRYPOINT ["weir"]
CMD ["edge", "serve"]
