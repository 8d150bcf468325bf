# lattice serve in a container:
#   docker build -t lattice .
#   docker run -p 8080:8080 -v ./all-minilm-l6-v2:/models/all-minilm-l6-v2:ro lattice -m /models/all-minilm-l6-v2
FROM debian:bookworm-slim AS build
# Versions are those of the base image's release, which keeps no older ones.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        build-essential cmake libcurl4-openssl-dev liblmdb-dev libmicrohttpd-dev libpcre2-dev libxxhash-dev ninja-build pkg-config python3 \
    && rm -rf /var/lib/apt/lists/*
COPY . /src
WORKDIR /src
RUN cmake -S . -B /build -G Ninja -DLATTICE_TESTS=OFF -DLATTICE_EXAMPLES=OFF \
    && cmake --build /build --target products \
    && cmake --install /build --prefix /opt/lattice --strip

FROM debian:bookworm-slim
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        ca-certificates curl libcurl4 liblmdb0 libmicrohttpd12 libpcre2-8-0 libxxhash0 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --create-home --home-dir /var/lib/lattice lattice
COPY --from=build /opt/lattice /usr/local
USER 10001
WORKDIR /var/lib/lattice
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s CMD ["curl", "-fsS", "-o", "/dev/null", "http://127.0.0.1:8080/health"]
# The container's own network is what --host 0.0.0.0 opens; give --api-key-file where others can reach it.
ENTRYPOINT ["lattice", "serve", "--host", "0.0.0.0"]
