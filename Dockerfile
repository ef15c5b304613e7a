# One binary, built from this tree.
FROM rust:1-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --profile dist --locked --bin orchestrix

FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/* \
    && install -d -o 1000 -g 1000 /data
COPY --from=build /src/target/dist/orchestrix /usr/local/bin/orchestrix
USER 1000:1000
VOLUME /data
EXPOSE 3000
ENTRYPOINT ["orchestrix"]
CMD ["serve", "--data", "/data"]
