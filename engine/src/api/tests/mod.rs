//! Tests of the API over real sockets on loopback: `server` starts one, `raw` speaks HTTP/2 frame
//! by frame, `grpc_client` gRPC; the other files have the tests, each about one theme.

mod abuse;
mod access;
mod bodies;
mod connections;
mod deadlines;
mod documented;
mod grpc_client;
mod health;
mod infer;
mod large;
mod lifecycle;
mod metadata;
mod panics;
mod raw;
mod server;
mod streams;
mod tls;
mod unread;
