//! The parts that test programs share: an engine in the test's process ([`engine`]), a server in a
//! process of its own ([`process`]), an engine spread over processes ([`cluster`]) with
//! certificates ([`certificates`]), an etcd ([`etcd`]) and a name server ([`name_server`]), ONNX
//! files of its own ([`onnx`]), real networks ([`light_models`]), ONNX Runtime's library
//! ([`onnx_library`]), GPUs that are none ([`fake_gpus`]), and waiting with a bound. A test program
//! takes it by `mod harness;`; those of other packages take single files by their path.

#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod certificates;
pub(crate) mod cluster;
pub(crate) mod engine;
pub(crate) mod etcd;
pub(crate) mod fake_gpus;
pub(crate) mod light_models;
pub(crate) mod name_server;
pub(crate) mod onnx;
pub(crate) mod onnx_library;
pub(crate) mod process;
