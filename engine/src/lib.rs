//! Symphony's engine: it serves neural networks under deadlines. Each request has a time by which
//! its answer is due; the engine holds requests back for as long as that allows, so that batches
//! grow, and starts each batch on the GPU that fits (deferred batch scheduling).
//!
//! The crate is the program `symphony` and a library. A program that has the engine as a library
//! starts it from a [`config`], submits requests through a [`runtime::Frontend`] and polls for
//! their answers:
//!
//! ```
//! use symphony::config::parse_config;
//! use symphony::runtime::frontend::Ask;
//! use symphony::runtime::{Engine, no_progress};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = parse_config(
//!     r#"
//!     [[executors]]
//!     kind = "emulated"
//!
//!     [[models]]
//!     name = "m"
//!     executor = "emulated"
//!     slo_ms = 1000
//!     profile = { alpha_ms = 0.2, beta_ms = 2.0 }
//!     "#,
//! )?;
//! let (engine, mut frontends) = Engine::start(config, 1, no_progress())?;
//! let mut frontend = frontends.pop().expect("one frontend was asked for");
//!
//! let model = frontend.find_model("m").expect("the configuration has it").id;
//! let ticket = frontend.submit(&Ask::one(model), |_row, input| input.fill(0))?;
//! let mut output = None;
//! while output.is_none() {
//!     frontend.poll(|answered, answer| {
//!         assert_eq!(answered, ticket);
//!         println!("{:?} after {:?}", answer.outcome, answer.timeline.total());
//!         output = Some(answer.to_vec());
//!     });
//! }
//! engine.stop();
//! # Ok(())
//! # }
//! ```
//!
//! `examples/embed_engine.rs` puts the engine behind a protocol of its own, with many clients.
//!
//! # Modules
//!
//! A library user needs [`config`] and [`runtime`]. The others build a server of them: [`api`] has
//! HTTP and gRPC, [`control`] loads and unloads models, [`telemetry`] has metrics, traces and logs,
//! [`recorder`] the flight recorder, [`cli`] the command line and [`top`] the screen of
//! `symphony top`. ARCHITECTURE.md follows a request through all of them. The scheduler, without
//! clocks and threads, is the crate [`symphony_scheduler`].

pub mod api;
mod batch_client;
pub mod cli;
pub mod config;
pub mod control;
pub mod recorder;
pub mod runtime;
pub mod telemetry;
pub mod top;
